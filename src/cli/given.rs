//! Which store the user named on the command line, for commands that are printed to be run next.

use super::app::GlobalArgs;
use super::render::shell;

/// The flags that say which store is meant, as far as the user gave them. What the environment or the configuration file
/// says holds for the next command too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    flags: Vec<String>,
    /// Whether the URL is left out, as it holds something that must not be shown.
    hides_store: bool,
}

impl Given {
    /// What these flags say.
    pub fn of(global: &GlobalArgs) -> Given {
        let mut given = Given::default();
        if let Some(store) = &global.store {
            match store.to_string() == store.expose() {
                true => given.add("--store", store.expose()),
                false => given.hides_store = true,
            }
        }
        let named =
            [("--database", &global.database), ("--prefix", &global.prefix), ("--profile", &global.profile)];
        for (flag, value) in named {
            value.iter().for_each(|value| given.add(flag, value));
        }
        given
    }

    fn add(&mut self, flag: &str, value: &str) {
        self.flags.extend([flag.to_owned(), value.to_owned()]);
    }

    /// A command of relayctl on the same store, as a line for a shell.
    pub fn command<'w>(&'w self, words: impl IntoIterator<Item = &'w str>) -> String {
        let flags = self.flags.iter().map(String::as_str);
        shell::line(std::iter::once("relayctl").chain(flags).chain(words))
    }

    /// Whether `--store` was given and is not repeated in commands, since it may hold a password.
    pub fn hides_store(&self) -> bool {
        self.hides_store
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::app::Cli;
    use clap::Parser as _;

    fn given(flags: &[&str]) -> Given {
        let cli = Cli::try_parse_from([&["relayctl"], flags, &["stats"]].concat()).unwrap();
        Given::of(&cli.global)
    }

    #[test]
    fn what_was_given_is_given_again() {
        let flags = ["--prefix", "shop_", "--store", "mongodb://h:1/?replicaSet=rs0", "-o", "json", "--yes"];
        assert_eq!(
            given(&flags).command(["requeue", "a b"]),
            "relayctl --store 'mongodb://h:1/?replicaSet=rs0' --prefix shop_ requeue 'a b'"
        );
        assert_eq!(given(&[]).command(["stats"]), "relayctl stats");
    }

    #[test]
    fn a_secret_is_never_repeated() {
        for url in ["mongodb://ana:hunter2@h/", "mongodb://h/?tlsCertificateKeyFilePassword=hunter2"] {
            let given = given(&["--store", url, "--database", "shop"]);
            assert_eq!(given.command(["stats"]), "relayctl --database shop stats");
            assert!(given.hides_store());
        }
    }
}

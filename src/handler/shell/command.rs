//! What to run for a delivery.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use super::environment::{self, Facts};
use super::identity::Identity;

/// A program with its arguments, or a line for the shell, and the surroundings in which it runs.
///
/// Nothing of an event is ever put into the arguments or the line: a child reads it from stdin.
#[derive(Clone, Debug)]
pub struct Command {
    program: OsString,
    arguments: Vec<OsString>,
    workdir: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
    inherited: Vec<String>,
    identity: Option<Identity>,
    nice: Option<i8>,
}

/// The program that starts another one with a lower priority. It costs one more `exec`; the alternative, to change the
/// child behind its start, would miss what it starts at once itself.
const NICE: &str = "nice";

impl Command {
    /// A program, looked up in `PATH` unless it holds a `/`, with its arguments.
    pub fn argv<A: Into<OsString>>(
        program: impl Into<OsString>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        Command {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            workdir: None,
            environment: Vec::new(),
            inherited: Vec::new(),
            identity: None,
            nice: None,
        }
    }

    /// A line that `sh -c` runs as it is.
    pub fn shell(line: impl Into<OsString>) -> Self {
        Command::argv("sh", [OsString::from("-c"), line.into()])
    }

    /// Runs it in this directory instead of the worker's own.
    pub fn workdir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.workdir = Some(directory.into());
        self
    }

    /// Sets a variable of the child's environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Hands a variable of the worker's own environment on to the child, if it is set.
    pub fn inherit_env(mut self, name: impl Into<String>) -> Self {
        self.inherited.push(name.into());
        self
    }

    /// Runs it with the rights of somebody else. Its start costs more then, as this process has to be forked.
    pub fn run_as(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Runs it by `nice -n`, from 19 (whenever nothing else wants to run) to -20 (before everything else, for root alone).
    pub fn nice(mut self, adjustment: i8) -> Self {
        self.nice = Some(adjustment);
        self
    }

    /// What the operating system is to start.
    fn resolved(self) -> Self {
        let Some(adjustment) = self.nice else { return self };
        let how = [OsString::from("-n"), adjustment.to_string().into(), self.program];
        let arguments = how.into_iter().chain(self.arguments).collect();
        Command { program: NICE.into(), arguments, ..self }
    }

    /// Looks whether the program and the directory are there, without running anything.
    ///
    /// # Errors
    /// A sentence that says what is missing.
    pub fn check(&self) -> Result<(), String> {
        let workdir = self.workdir.as_deref();
        if let Some(directory) = workdir.filter(|directory| !directory.is_dir()) {
            return Err(format!("there is no directory {}", directory.display()));
        }
        if self.nice.is_some() {
            Command { nice: None, program: NICE.into(), ..self.clone() }.check()?;
        }
        if self.is_path() {
            let program = Path::new(&self.program);
            let path = workdir.map_or_else(|| program.to_owned(), |directory| directory.join(program));
            return if is_executable(&path) {
                Ok(())
            } else {
                Err(format!("`{self}` is no executable file"))
            };
        }
        let found = self.candidates(&self.surroundings()).any(|path| is_executable(&path));
        if found { Ok(()) } else { Err(format!("there is no command `{self}` in PATH")) }
    }

    fn is_path(&self) -> bool {
        self.program.as_encoded_bytes().contains(&b'/')
    }

    /// Where the program may be, in the order of the child's `PATH`.
    fn candidates(&self, surroundings: &[(OsString, OsString)]) -> impl Iterator<Item = PathBuf> {
        let path = surroundings.iter().rfind(|(name, _)| name == "PATH").map(|(_, path)| path.clone());
        let directories: Vec<_> = std::env::split_paths(&path.unwrap_or_default()).collect();
        directories.into_iter().map(|directory| directory.join(&self.program))
    }

    /// The child's environment but for the facts of the attempt.
    fn surroundings(&self) -> Vec<(OsString, OsString)> {
        let inherited = environment::inherited(std::env::vars_os(), &self.inherited);
        let of_user = self.identity.iter().flat_map(|identity| identity.variables.iter().cloned());
        inherited.into_iter().chain(of_user).chain(self.environment.iter().cloned()).collect()
    }

    /// Why a start failed, with the name of what is missing: the operating system's error does not say whether it means
    /// the program or the directory.
    pub(in crate::handler) fn explain_spawn_error(&self, error: &std::io::Error) -> String {
        match &self.workdir {
            Some(directory) if !directory.is_dir() => {
                format!("cannot start `{self}` in {}: {error}", directory.display())
            }
            _ => format!("cannot start `{self}`: {error}"),
        }
    }
}

/// A command with the part of its environment that is the same for all attempts.
#[derive(Clone, Debug)]
pub(in crate::handler) struct Prepared {
    command: Command,
    /// What is started for it.
    start: Command,
    surroundings: Vec<(OsString, OsString)>,
    stdout_kept: Option<usize>,
}

impl Prepared {
    /// Takes what is inherited from this process' environment as it is now.
    pub(in crate::handler) fn new(command: Command) -> Self {
        let surroundings = command.surroundings();
        Prepared { start: command.clone().resolved(), command, surroundings, stdout_kept: None }
    }

    /// Keeps what its children write to stdout, up to `limit` bytes.
    pub(super) fn keeping_stdout(self, limit: usize) -> Self {
        Prepared { stdout_kept: Some(limit), ..self }
    }

    /// How much of stdout is kept beside its tail, in bytes.
    pub(super) fn stdout_kept(&self) -> Option<usize> {
        self.stdout_kept
    }

    pub(in crate::handler) fn command(&self) -> &Command {
        &self.command
    }

    /// The program as it is named.
    pub(in crate::handler) fn name(&self) -> &OsStr {
        &self.start.program
    }

    /// Where a search in `PATH` finds the program. `None` when nothing is to be searched, or it is to be searched in a
    /// directory that only the child knows.
    pub(in crate::handler) fn path(&self) -> Option<PathBuf> {
        if self.start.is_path() {
            return None;
        }
        let mut candidates = self.start.candidates(&self.surroundings);
        candidates.find(|path| path.is_relative() || is_executable(path)).filter(|path| path.is_absolute())
    }

    /// The operating system's command for one attempt, with a process group of its own. `program` is its name or path.
    pub(in crate::handler) fn start_of(&self, program: &OsStr, facts: &Facts) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(program);
        command
            .arg0(self.name())
            .args(&self.start.arguments)
            .env_clear()
            .envs(self.surroundings.iter().map(|(name, value)| (name, value)))
            .envs(facts.iter().map(|(name, value)| (name, value)))
            .process_group(0);
        if let Some(directory) = &self.command.workdir {
            command.current_dir(directory);
        }
        let identity = self.command.identity.as_ref();
        identity.and_then(|identity| identity.gid).map(|gid| command.gid(gid));
        identity.and_then(|identity| identity.uid).map(|uid| command.uid(uid));
        command
    }
}

impl fmt::Display for Command {
    /// The program alone: arguments may be long, and may hold what is not for a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        OsStr::display(&self.program).fmt(f)
    }
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_names_what_is_missing() {
        assert_eq!(Command::shell("anything at all").check(), Ok(()));
        assert_eq!(Command::argv("/bin/sh", [""; 0]).check(), Ok(()));
        let check = |command: Command| command.check().unwrap_err();
        assert_eq!(
            check(Command::argv("no-such-program", ["secret"])),
            "there is no command `no-such-program` in PATH"
        );
        assert_eq!(check(Command::argv("/etc/passwd", [""; 0])), "`/etc/passwd` is no executable file");
        assert_eq!(check(Command::shell("true").workdir("/no/dir")), "there is no directory /no/dir");
        assert_eq!(
            check(Command::argv("cat", [""; 0]).env("PATH", "/no/dir")),
            "there is no command `cat` in PATH"
        );
    }
}

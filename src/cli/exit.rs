//! Exit codes. They are part of the contract: scripts and monitoring depend on them.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[must_use]
pub enum Exit {
    /// It did what it was asked, which includes that there was nothing to do.
    Done,
    /// It failed, was declined at a prompt, or an id does not exist.
    Failed,
    /// The command line or the configuration is not understood; nothing was done.
    Usage,
    /// Some of it was done, and some was not.
    Partial,
    /// The store cannot be reached, or refuses this user.
    Unavailable,
    /// The store is not what it has to be: a standalone server, a missing schema.
    Misconfigured,
    /// A signal ended it.
    Interrupted,
    /// Only of `check`: a threshold of warning is reached.
    Warning,
    /// Only of `check`: a critical threshold is reached.
    Critical,
    /// Only of `check`: it could not be found out, for whatever reason.
    Unknown,
}

impl Exit {
    /// Those of every command but `check`, whose codes have other meanings.
    const ALL: [Exit; 7] = [
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::Partial,
        Exit::Unavailable,
        Exit::Misconfigured,
        Exit::Interrupted,
    ];

    /// What a code means; one that has no meaning here is a failure.
    pub fn of(code: i32) -> Exit {
        Exit::ALL.into_iter().find(|exit| i32::from(exit.code()) == code).unwrap_or(Exit::Failed)
    }

    /// The code that the shell sees.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Partial => 3,
            Exit::Unavailable => 4,
            Exit::Misconfigured => 5,
            Exit::Interrupted => 130,
            Exit::Warning => 1,
            Exit::Critical => 2,
            Exit::Unknown => 3,
        }
    }

    /// What it is in the convention of monitoring: whatever is not an answer is unknown.
    pub fn for_monitoring(self) -> Exit {
        match self {
            Exit::Done | Exit::Warning | Exit::Critical => self,
            _ => Exit::Unknown,
        }
    }

    /// What the code means, for the help texts.
    pub const fn meaning(self) -> &'static str {
        match self {
            Exit::Done => "done; also when there was nothing to do",
            Exit::Failed => "failed, declined at a prompt, or no such id",
            Exit::Usage => "the command line or the configuration is not understood",
            Exit::Partial => "partly done",
            Exit::Unavailable => "cannot connect, or not let in",
            Exit::Misconfigured => "the store is not set up: standalone server, missing schema",
            Exit::Interrupted => "interrupted by a signal",
            Exit::Warning => "a threshold of warning is reached",
            Exit::Critical => "a critical threshold is reached",
            Exit::Unknown => "it could not be found out; also for a slip on the command line",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

//! The processes that one command started: its process group, from the start to the last of them.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::time::Instant;

/// How long after a child's own end its outputs may stay open, for the last words of a helper such as `tee`.
pub(in crate::handler) const LAST_WORDS: Duration = Duration::from_millis(250);

/// How long processes that a child left behind have from TERM to KILL.
pub(in crate::handler) const LEFTOVER_GRACE: Duration = Duration::from_secs(1);

/// How long to wait for the kernel after a KILL.
pub(in crate::handler) const AFTER_KILL: Duration = Duration::from_secs(1);

/// How often to look whether a group that was told to end has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A process group that is led by a child of this process. What is left of it is killed when this is dropped.
///
/// The number of a group stays taken as long as any process is in it, so that a signal can reach no one else.
#[derive(Debug)]
pub(in crate::handler) struct ProcessGroup {
    id: Pid,
    is_gone: bool,
}

impl ProcessGroup {
    /// The group of a child that was started as the leader of a new one. `None` when the child was reaped already.
    pub(in crate::handler) fn led_by(child: &Child) -> Option<Self> {
        let pid = i32::try_from(child.id()?).ok()?;
        Some(ProcessGroup { id: Pid::from_raw(pid), is_gone: false })
    }

    /// Its number.
    pub(in crate::handler) fn id(&self) -> u32 {
        self.id.as_raw().unsigned_abs()
    }

    /// Asks all its processes to end.
    pub(in crate::handler) fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Ends all its processes.
    pub(in crate::handler) fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    fn signal(&self, signal: Signal) {
        if !self.is_gone {
            // It fails when the group is gone, which is what was wanted.
            let _ = killpg(self.id, signal);
        }
    }

    /// TERM now and KILL at `kill_at`, for what a child has left behind. Returns when nothing of it is left, or it hangs
    /// in the kernel.
    pub(in crate::handler) async fn end_by(&mut self, kill_at: Instant) {
        self.terminate();
        if !self.is_gone_by(kill_at).await {
            self.kill();
            self.is_gone_by(Instant::now() + AFTER_KILL).await;
        }
    }

    /// Waits until no process of the group is left, at most until `deadline`; returns whether that is so.
    pub(in crate::handler) async fn is_gone_by(&mut self, deadline: Instant) -> bool {
        while !self.look() && Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.is_gone
    }

    /// Whether no process of the group is left. To be asked as soon as the leader has been reaped: from then on the
    /// number may be given to others, unless another member holds it.
    pub(in crate::handler) fn look(&mut self) -> bool {
        if !self.is_gone && self.exists() {
            self.reap_adopted();
            self.is_gone = !self.exists() || !has_living_member(self.id);
        } else {
            self.is_gone = true;
        }
        self.is_gone
    }

    /// Zombies count.
    fn exists(&self) -> bool {
        killpg(self.id, None) != Err(Errno::ESRCH)
    }

    /// Orphans become children of the init process; where that is this process, as in a container, nobody else takes
    /// their exit status.
    fn reap_adopted(&self) {
        let group = Pid::from_raw(-self.id.as_raw());
        while let Ok(status) = waitpid(group, Some(WaitPidFlag::WNOHANG)) {
            if status == WaitStatus::StillAlive {
                break;
            }
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether the group has a process that is no zombie. Where init reaps nobody, zombies stay members for ever.
#[cfg(target_os = "linux")]
fn has_living_member(group: Pid) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    let statuses =
        processes.flatten().filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    statuses
        .filter_map(|stat| state_and_group(&stat))
        .any(|(state, of)| of == group.as_raw() && !"ZX".contains(state))
}

#[cfg(not(target_os = "linux"))]
fn has_living_member(_group: Pid) -> bool {
    true
}

/// State and process group from a line of `/proc/<pid>/stat`: `pid (name) state parent group …`, where the name may
/// hold anything.
#[cfg(target_os = "linux")]
fn state_and_group(stat: &str) -> Option<(char, i32)> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let group = fields.nth(1)?.parse().ok()?;
    Some((state, group))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn reads_a_stat_line_whatever_the_name() {
        assert_eq!(state_and_group("17 (sh) S 1 17 17 0 -1"), Some(('S', 17)));
        assert_eq!(state_and_group("17 (a) Z 9 9) R 1 23 17"), Some(('R', 23)));
        assert_eq!(state_and_group("garbage"), None);
    }

    #[test]
    fn this_process_is_a_living_member_of_its_group() {
        assert!(has_living_member(nix::unistd::getpgrp()));
    }
}

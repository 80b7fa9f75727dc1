//! What runs on this machine, from `/proc`.

use std::fs;
use std::path::Path;

/// One line of `/proc/<pid>/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub state: char,
    pub parent: i32,
}

impl Process {
    fn read(pid: i32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        Some(Process { pid, state, parent: fields.next()?.parse().ok()? })
    }
}

pub fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Process::read).collect()
}

/// Everything that stems from a process and is still linked to it; orphans are not.
pub fn below(pid: i32) -> Vec<Process> {
    let all = all();
    let mut found = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        let children = all.iter().filter(|process| process.parent == parent).cloned();
        let first_new = found.len();
        found.extend(children);
        parents.extend(found[first_new..].iter().map(|process| process.pid));
    }
    found
}

/// The living processes that a worker started for its deliveries, and what those started: they have the worker's home
/// directory in their environment, and the name of a delivery. Zombies have lost it.
pub fn of_deliveries(home: &Path) -> Vec<i32> {
    let home = format!("HOME={}", home.display());
    let is_one = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.clone().any(|variable| variable == home.as_bytes())
            && variables.any(|variable| variable.starts_with(b"RELAY_DELIVERY_ID="))
    };
    all().into_iter().map(|process| process.pid).filter(|pid| is_one(*pid)).collect()
}

/// A number of kB from `/proc/<pid>/status`, such as `VmHWM`, the most memory that a process ever took.
pub fn kb(pid: i32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| value.trim().trim_end_matches(" kB").parse().ok()).expect("a number of kB")
}

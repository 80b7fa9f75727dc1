//! What commands wrote into one file, line by line, and whether two of a key ran at once.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::harness::Sandbox;

/// A line: what it tells, the key, the sequence, and the process that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub what: String,
    pub key: String,
    pub sequence: i64,
    pub process: String,
}

/// A shell line that tells its begin, that it is still there, so many times every 20 ms, and its end.
pub fn line_that_tells(sandbox: &Sandbox, ticks: usize) -> String {
    let tell = format!("echo \"$1 $RELAY_KEY $RELAY_SEQUENCE $$\" >> {}", path(sandbox).display());
    format!(
        "tell() {{ {tell}; }}; tell begin; n=0; while test $n -lt {ticks}; do sleep 0.02; tell runs; n=$((n+1)); done; tell end"
    )
}

fn path(sandbox: &Sandbox) -> PathBuf {
    sandbox.home.path().join("trace")
}

/// All lines so far, in the order in which they were written: each is one write.
pub fn read(sandbox: &Sandbox) -> Vec<Line> {
    let text = std::fs::read_to_string(path(sandbox)).unwrap_or_default();
    let parse = |line: &str| {
        let [what, key, sequence, process] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let (what, key, process) = (what.to_owned(), key.to_owned(), process.to_owned());
        Some(Line { what, key, sequence: sequence.parse().ok()?, process })
    };
    let whole_lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    whole_lines.map(|line| parse(line).unwrap_or_else(|| panic!("strange line {line}"))).collect()
}

/// What was written by a process after another one of its key had begun.
pub fn overlaps<'l>(lines: &'l [Line]) -> Vec<&'l Line> {
    let mut latest = BTreeMap::new();
    let is_late = |line: &&'l Line| {
        if line.what == "begin" {
            latest.insert(&line.key, &line.process);
        }
        latest.get(&line.key) != Some(&&line.process)
    };
    lines.iter().filter(is_late).collect()
}

/// What began before one of an earlier sequence of its key ended for the last time.
pub fn out_of_order<'l>(lines: &'l [Line]) -> Vec<&'l Line> {
    let mut latest = BTreeMap::new();
    let is_early = |line: &&'l Line| {
        let last = latest.insert(&line.key, line.sequence).unwrap_or(0);
        line.sequence != last && line.sequence != last + 1
    };
    lines.iter().filter(|line| line.what == "begin").filter(is_early).collect()
}

//! Whose rights a command has.

use std::ffi::OsString;
use std::fmt;

use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, geteuid};

/// A user and a group that a command runs as, and what goes with the user. Other groups of the worker are dropped with its
/// user; those of the new user, other than its first, are not taken on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    /// HOME, USER and LOGNAME.
    pub(super) variables: Vec<(OsString, OsString)>,
}

/// A user or group that a command cannot run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidIdentity {
    /// `user` or `group`.
    pub field: &'static str,
    /// Why.
    pub reason: String,
}

impl fmt::Display for InvalidIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl std::error::Error for InvalidIdentity {}

impl Identity {
    /// Looks a user and a group up, by name or number. A user's own group is taken where none is named.
    ///
    /// # Errors
    /// When this process is not root's, or there is no such user or group.
    pub fn find(user: Option<&str>, group: Option<&str>) -> Result<Self, InvalidIdentity> {
        let field = if user.is_some() { "user" } else { "group" };
        if !geteuid().is_root() {
            return Err(InvalidIdentity {
                field,
                reason: "only root can run commands as somebody else".into(),
            });
        }
        let group = group.map(find_group).transpose()?;
        let Some(name) = user else {
            return Ok(Identity { uid: None, gid: group, variables: Vec::new() });
        };
        let user = find_user(name)?;
        let pair = |name: &str, value: OsString| (OsString::from(name), value);
        let variables = vec![
            pair("HOME", user.dir.into_os_string()),
            pair("USER", user.name.clone().into()),
            pair("LOGNAME", user.name.into()),
        ];
        Ok(Identity { uid: Some(user.uid.as_raw()), gid: group.or(Some(user.gid.as_raw())), variables })
    }
}

fn find_user(name: &str) -> Result<User, InvalidIdentity> {
    let refuse = |reason: String| InvalidIdentity { field: "user", reason };
    let found = match name.parse() {
        Ok(number) => User::from_uid(Uid::from_raw(number)),
        Err(_) => User::from_name(name),
    };
    let found = found.map_err(|error: Errno| refuse(format!("cannot look up `{name}`: {error}")))?;
    found.ok_or_else(|| refuse(format!("there is no user `{name}`")))
}

/// A number need not have a name.
fn find_group(name: &str) -> Result<u32, InvalidIdentity> {
    let refuse = |reason: String| InvalidIdentity { field: "group", reason };
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number).as_raw());
    }
    let found =
        Group::from_name(name).map_err(|error| refuse(format!("cannot look up `{name}`: {error}")))?;
    found.map(|group| group.gid.as_raw()).ok_or_else(|| refuse(format!("there is no group `{name}`")))
}

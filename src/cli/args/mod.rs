//! Arguments that several commands share.

pub mod filter;
pub mod values;
pub mod when;

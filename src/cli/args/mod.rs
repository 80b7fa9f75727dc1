//! Arguments that several commands share.

pub mod filter;
pub mod pace;
pub mod values;
pub mod when;

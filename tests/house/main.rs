//! The house rules that no compiler keeps: who may use whom, and a README whose every example works.

mod readme;
mod rooms;

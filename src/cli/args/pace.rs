//! How fast a command may change many things.

use std::time::Duration;

use clap::Args;

use super::values::duration;
use crate::ops::{Pace, Rate};

/// As fast as the store allows unless a rate is given.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct PaceArgs {
    /// Change no more than so many in a second (50/s), minute (600/m) or hour (1000/h)
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// Begin with a tenth of the rate, and reach all of it after this time: 90s, 15m
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "rate")]
    ramp: Option<Duration>,
}

impl PaceArgs {
    /// The pace that is meant; `None` for as fast as possible.
    pub fn pace(self) -> Option<Pace> {
        self.rate.map(|rate| Pace { rate, ramp: self.ramp })
    }
}

//! When a failed attempt is tried again.

use std::time::Duration;

/// The delay before the next attempt, as a function of the attempts already made.
///
/// All policies are exact for any number of attempts: they saturate at their cap and never overflow.
#[derive(Clone, Debug, PartialEq)]
pub enum RetryPolicy {
    /// Always the same delay.
    Fixed {
        /// The delay.
        delay: Duration,
    },
    /// `base` times the attempt, at most `cap`.
    Linear {
        /// The delay after the first attempt, and what each further one adds.
        base: Duration,
        /// The longest delay.
        cap: Duration,
    },
    /// `base` times `factor` to the power of (attempt - 1), at most `cap`, less a random part.
    Exponential {
        /// The delay after the first attempt.
        base: Duration,
        /// What each further attempt multiplies it by; at least 1.
        factor: f64,
        /// The longest delay.
        cap: Duration,
        /// The share of the delay that chance may take away, from 0 (none) to 1 (all of it).
        jitter: f64,
    },
}

impl Default for RetryPolicy {
    /// One second, doubling, at most a minute; up to a fifth of it left to chance so that deliveries which failed
    /// together do not come back together.
    fn default() -> Self {
        RetryPolicy::Exponential {
            base: Duration::from_secs(1),
            factor: 2.0,
            cap: Duration::from_secs(60),
            jitter: 0.2,
        }
    }
}

impl RetryPolicy {
    /// The delay after `attempt` attempts (counted from 1). `chance` is a random number in `0.0..1.0`; a policy
    /// without jitter ignores it. Truncated to whole milliseconds.
    pub fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let attempt = attempt.max(1);
        let delay = match *self {
            RetryPolicy::Fixed { delay } => delay,
            RetryPolicy::Linear { base, cap } => base.saturating_mul(attempt).min(cap),
            RetryPolicy::Exponential { base, factor, cap, jitter } => {
                let full = grow(base, factor, attempt - 1, cap);
                let taken = full.mul_f64(jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0));
                full.saturating_sub(taken)
            }
        };
        Duration::from_millis(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX))
    }
}

/// `base * factor^exponent`, at most `cap`. Doubles overflow to infinity, which the cap cuts off; below that they
/// hold every power of two exactly.
fn grow(base: Duration, factor: f64, exponent: u32, cap: Duration) -> Duration {
    const NANOS_PER_MILLI: f64 = 1e6;
    if base.is_zero() {
        return Duration::ZERO;
    }
    let millis = base.as_nanos() as f64 * factor.max(1.0).powf(f64::from(exponent)) / NANOS_PER_MILLI;
    if millis >= cap.as_millis() as f64 { cap } else { Duration::from_millis(millis as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(policy: &RetryPolicy, attempts: &[u32]) -> Vec<f64> {
        attempts.iter().map(|&attempt| policy.delay(attempt, 0.0).as_secs_f64()).collect()
    }

    #[test]
    fn fixed_and_linear_are_exact_at_any_attempt() {
        let fixed = RetryPolicy::Fixed { delay: Duration::from_secs(7) };
        assert_eq!(seconds(&fixed, &[0, 1, 64, 1_000_000]), [7.0; 4]);
        let linear =
            RetryPolicy::Linear { base: Duration::from_secs(2), cap: Duration::from_secs(3_000_000) };
        assert_eq!(
            seconds(&linear, &[1, 2, 64, 1_000_000, u32::MAX]),
            [2.0, 4.0, 128.0, 2_000_000.0, 3_000_000.0]
        );
    }

    #[test]
    fn exponential_doubles_up_to_its_cap_and_stays_there() {
        let policy = RetryPolicy::default();
        assert_eq!(
            seconds(&policy, &[1, 2, 3, 6, 7, 64, 1_000_000, u32::MAX]),
            [1.0, 2.0, 4.0, 32.0, 60.0, 60.0, 60.0, 60.0]
        );
        let wide = RetryPolicy::Exponential {
            base: Duration::from_millis(1),
            factor: 2.0,
            cap: Duration::from_millis(u64::MAX),
            jitter: 0.0,
        };
        assert_eq!(wide.delay(64, 0.0), Duration::from_millis(1 << 63));
        assert_eq!(wide.delay(65, 0.0), Duration::from_millis(u64::MAX));
        assert_eq!(wide.delay(1_000_000, 0.0), Duration::from_millis(u64::MAX));
    }

    #[test]
    fn jitter_only_ever_shortens_and_only_by_its_share() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.delay(1, 1.0), Duration::from_millis(800));
        assert_eq!(policy.delay(64, 0.0), Duration::from_secs(60));
        assert_eq!(policy.delay(1_000_000, 0.5), Duration::from_secs(54));
    }

    #[test]
    fn a_zero_base_and_a_shrinking_factor_do_no_harm() {
        let policy = |base, factor| RetryPolicy::Exponential {
            base,
            factor,
            cap: Duration::from_secs(9),
            jitter: 0.0,
        };
        assert_eq!(policy(Duration::ZERO, 2.0).delay(1_000_000, 0.0), Duration::ZERO);
        assert_eq!(policy(Duration::from_secs(1), 0.5).delay(1_000_000, 0.0), Duration::from_secs(1));
    }
}

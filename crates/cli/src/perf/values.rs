//! Sizes of keys and values in a pool of Memcached servers at Facebook.
//!
//! After Atikoglu, Xu, Frachtenberg, Jiang and Paleczny, "Workload analysis of a large-scale key-value store"
//! (SIGMETRICS 2012), section 5: the ETC pool.

use fastrand::Rng;

/// Parameters of key sizes: a generalized extreme value distribution.
const KEY_LOCATION: f64 = 30.7984;
const KEY_SCALE: f64 = 8.20449;
const KEY_SHAPE: f64 = 0.078688;

/// Parameters of value sizes: a generalized Pareto distribution from 0 on.
const VALUE_SCALE: f64 = 214.476;
const VALUE_SHAPE: f64 = 0.348238;

/// Maximum sizes of Memcached in bytes.
const KEY_BYTES_MAX: f64 = 250.0;
const VALUE_BYTES_MAX: f64 = (1 << 20) as f64;

/// Draws the sizes of a key and of its value, in bytes.
pub fn draw(random: &mut Rng) -> (u64, u64) {
    let key = key_bytes(random.f64()).clamp(1.0, KEY_BYTES_MAX);
    let value = value_bytes(random.f64()).clamp(1.0, VALUE_BYTES_MAX);
    (key.round() as u64, value.round() as u64)
}

/// Returns the size of the key at `quantile`.
fn key_bytes(quantile: f64) -> f64 {
    KEY_LOCATION + KEY_SCALE / KEY_SHAPE * ((-quantile.ln()).powf(-KEY_SHAPE) - 1.0)
}

/// Returns the size of the value at `quantile`.
fn value_bytes(quantile: f64) -> f64 {
    VALUE_SCALE / VALUE_SHAPE * ((1.0 - quantile).powf(-VALUE_SHAPE) - 1.0)
}

//! Runs `halite run`, and the peers of its applications: a hash map in one process, and a file with one writer.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use dashmap::DashMap;
use rand_distr::{Distribution, Zipf};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use serde::Deserialize;

use super::cores::{CLIENT_CORE, on_core};
use super::halite;
use super::probe::{ProbeError, Sample};

/// Exponent of the Zipf distribution of YCSB's keys.
const EXPONENT: f64 = 0.99;
const VALUE_BYTES: usize = 64;
const RECORD_BYTES: usize = 16;

/// Output of an application. It contains one of the two rates.
#[derive(Deserialize)]
struct Line {
    operations_per_s: Option<f64>,
    commits_per_s: Option<f64>,
    verified: bool,
}

/// Runs `halite run` with `arguments` and parses its output. Fails if the application did not verify its results.
pub fn run(program: &Path, arguments: &[String]) -> Result<Sample, ProbeError> {
    let output = halite::json_output(program, "run", arguments)?;
    parse(&output).ok_or(ProbeError::Unreadable { program: "halite run", output })
}

fn parse(output: &str) -> Option<Sample> {
    let line: Line = serde_json::from_str(output.trim()).ok()?;
    line.operations_per_s.or(line.commits_per_s).filter(|_| line.verified).and_then(Sample::of_rate)
}

/// Reads values from a map in this process, on one thread, with the keys of `halite run ycsb --workload C`.
pub fn dashmap(keys: u64, iterations: u64) -> Result<Sample, ProbeError> {
    let map: DashMap<Vec<u8>, Vec<u8>> = (0..keys).map(|key| (key_of(key), value_of(key))).collect();
    let elapsed = on_core(CLIENT_CORE, || {
        let mut random = Pcg64Mcg::seed_from_u64(1);
        let popular = Zipf::new(keys as f64, EXPONENT).expect("there are keys");
        let mut found = Vec::new();
        let begin = Instant::now();
        for _ in 0..iterations {
            let rank = popular.sample(&mut random) as u64 - 1;
            let key = fastrand::Rng::with_seed(rank).u64(..keys);
            let value = map.get(&key_of(key)).expect("the map has every key");
            found.clear();
            found.extend_from_slice(&value);
            assert_eq!(found[..8], key.to_le_bytes());
        }
        begin.elapsed().as_secs_f64()
    })?;
    Ok(Sample::of_operations(iterations, elapsed))
}

fn key_of(key: u64) -> Vec<u8> {
    format!("user{key:012}").into_bytes()
}

fn value_of(key: u64) -> Vec<u8> {
    let mut value = vec![key as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

/// Appends records of 16 bytes to a file, on one thread, with `together` records per system call. The file is not
/// synced to disk.
pub fn file(together: u64, iterations: u64) -> Result<Sample, ProbeError> {
    let failed = |error: io::Error| ProbeError::Conversation { peer: "the file", source: error.into() };
    let elapsed = on_core(CLIENT_CORE, || {
        let file: File = tempfile::tempfile()?;
        let mut file = BufWriter::with_capacity(together as usize * RECORD_BYTES, file);
        let begin = Instant::now();
        for number in 0..iterations {
            file.write_all(&u128::from(number).to_le_bytes())?;
            if (number + 1).is_multiple_of(together) {
                file.flush()?;
            }
        }
        file.flush()?;
        io::Result::Ok(begin.elapsed().as_secs_f64())
    })?;
    Ok(Sample::of_operations(iterations, elapsed.map_err(failed)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_verified_output_is_a_sample() {
        let rate = |line: &str| parse(line).and_then(|sample| sample.rate_per_s);
        assert_eq!(rate("{\"app\":\"ycsb\",\"operations_per_s\":5.0,\"verified\":true}\n"), Some(5.0));
        assert_eq!(rate("{\"app\":\"log\",\"commits_per_s\":7.0,\"verified\":true}"), Some(7.0));
        assert_eq!(rate("{\"app\":\"log\",\"commits_per_s\":7.0,\"verified\":false}"), None);
        assert_eq!(rate("no JSON"), None);
    }

    #[test]
    fn the_peers_of_applications_have_a_rate() {
        assert!(dashmap(100, 1000).unwrap().rate_per_s.is_some_and(|rate| rate > 0.0));
        assert!(file(4, 1001).unwrap().rate_per_s.is_some_and(|rate| rate > 0.0));
    }
}

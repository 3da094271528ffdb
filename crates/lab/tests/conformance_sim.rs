//! The public API in simulated worlds, in virtual time.

mod local {
    use lab::conformance::sim::Simulated;

    lab::conformance_suite!(Simulated::profile("local"));
}

mod rnic_100g {
    use lab::conformance::sim::Simulated;

    lab::conformance_suite!(Simulated::profile("rnic-100g"));
}

/// Threads of a case take turns, so that even a crowd of them does the same again.
#[test]
fn what_happens_in_a_case_follows_from_its_seed() {
    use lab::conformance::{locks, sim::Simulated};

    let told = |seed| {
        let harness = Simulated::seeded("rnic-100g", seed);
        locks::nothing_is_lost_under_a_lock(&harness);
        harness.digest()
    };
    let digest = told(1);
    assert_eq!(told(1), digest);
    assert_ne!(told(2), digest);
}

/// A reason for a case that is not there, or is told by now, would mislead.
#[test]
fn cases_that_are_not_told_are_cases() {
    let list = include_str!("../src/conformance/mod.rs");
    for (case, why) in lab::conformance::sim::CANNOT {
        assert!(list.lines().any(|line| line.trim() == *case), "{case} is on no list");
        assert!(!why.is_empty());
    }
}

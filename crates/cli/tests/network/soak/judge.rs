//! Judges the logs of all workers together.

use std::collections::BTreeMap;

use halite_trials::linearizability::Span;
use halite_trials::linearizability::chain::Chain;
use halite_trials::linearizability::register::Change;

/// Time after which a newly founded cluster is complete again: two leases.
const FOUNDING_NS: u64 = 10_000_000_000;

/// The end of a process that held memory, at some time between `from_ns` and `until_ns`.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    pub node: u64,
    pub from_ns: u64,
    pub until_ns: u64,
}

impl Death {
    /// Returns true if the process may have ended within this period.
    fn is_within(&self, from_ns: u64, until_ns: u64) -> bool {
        self.from_ns <= until_ns && from_ns <= self.until_ns
    }
}

/// The violations that the judge found, and counts of the checked operations.
#[derive(Debug, Default)]
pub struct Findings {
    /// Lock histories are judged as in trials in virtual time.
    counters: BTreeMap<String, Chain>,
    regions: BTreeMap<String, Region>,
    locks: BTreeMap<String, Vec<Held>>,
    added: u64,
    /// Additions whose result is unknown.
    in_doubt: u64,
    gets: u64,
    failed: u64,
    pub violations: Vec<String>,
}

/// A region, and the nodes where it may be.
#[derive(Debug, Default)]
struct Region {
    is_there: bool,
    places: Vec<Place>,
}

impl Region {
    /// Records that the region has reached the last of its places, and is nowhere else.
    fn arrive(&mut self, now_ns: u64) {
        self.is_there = true;
        let node = self.places.last().expect("it was begun").node;
        for place in self.places.iter_mut().filter(|place| place.node != node) {
            place.until_ns = place.until_ns.min(now_ns);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    node: u64,
    from_ns: u64,
    until_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    token: u64,
    asked_ns: u64,
    taken_ns: u64,
    held_ns: u64,
}

impl Findings {
    /// Adds the log of one process.
    pub fn add(&mut self, log: &str) {
        // The last addition that has begun.
        let mut adding = 0;
        for line in log.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            let now_ns = number(0);
            match words[1..] {
                ["add", name] => {
                    adding = self.counters.entry(name.to_owned()).or_default().begin(now_ns, Change::Add(1));
                    self.in_doubt += 1;
                }
                ["add", _, "maybe"] => {}
                ["add", name, how] => {
                    let counter = self.counters.get_mut(name).expect("it was begun");
                    self.in_doubt -= 1;
                    if how == "no" {
                        counter.forget(adding);
                        self.failed += 1;
                    } else {
                        let changed = counter.changed(adding, now_ns, number(3));
                        self.violations.extend(changed.err().map(|why| format!("{name}: {why}")));
                        self.added += 1;
                    }
                }
                ["place", name, "ok"] => self.regions.get_mut(name).expect("it was begun").arrive(now_ns),
                ["place", _, "failed"] => self.failed += 1,
                ["place", name, _] => {
                    let place = Place { node: number(3), from_ns: now_ns, until_ns: u64::MAX };
                    self.regions.entry(name.to_owned()).or_default().places.push(place);
                }
                ["get", _, "ok"] => self.gets += 1,
                ["get", _, "failed"] => self.failed += 1,
                ["get", name, _] => self.violations.push(format!("{name} was read with other bytes")),
                ["lock", name, ..] => {
                    let held = Held {
                        token: number(3),
                        asked_ns: number(4),
                        taken_ns: number(5),
                        held_ns: number(6),
                    };
                    self.locks.entry(name.to_owned()).or_default().push(held);
                }
                _ => panic!("no such line: {line}"),
            }
        }
    }

    /// Returns the regions that must exist, because no node that could have held them has died.
    pub fn regions_due(&self, deaths: &[Death]) -> Vec<String> {
        let may_have_died = |place: &Place| {
            let mut of_node = deaths.iter().filter(|death| death.node == place.node);
            of_node.any(|death| death.is_within(place.from_ns, place.until_ns))
        };
        let there = self.regions.iter().filter(|(_, region)| region.is_there);
        there
            .filter(|(_, region)| !region.places.iter().any(may_have_died))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Records that a read that began at `begin_ns`, after all additions, found `value` in a counter.
    pub fn counted(&mut self, name: &str, begin_ns: u64, value: u64) {
        let span = Span { begin_ns, end_ns: u64::MAX };
        self.counters.entry(name.to_owned()).or_default().saw(span, value);
    }

    /// Checks that no addition is missing or was executed twice: some order of all additions explains the value that
    /// each returned.
    pub fn judge_counters(&mut self) {
        let wrong = self.counters.iter().filter_map(|(name, chain)| Some((name, chain.check().err()?)));
        self.violations.extend(wrong.map(|(name, why)| format!("{name}: {why}")));
    }

    /// Checks that tokens increase, and that two workers never hold a lock at the same time unless a process ended in
    /// between. A newly founded directory of names knows no holders, and may grant a held lock again until all other
    /// nodes have found the new directory.
    pub fn judge_locks(&mut self, deaths: &[Death], foundings_ns: &[u64]) {
        let is_founding = |held: &Held| {
            let mut foundings = foundings_ns.iter();
            foundings.any(|begin_ns| (*begin_ns..begin_ns + FOUNDING_NS).contains(&held.taken_ns))
        };
        for (name, all) in &mut self.locks {
            all.retain(|held| !is_founding(held));
            all.sort_by_key(|held| held.taken_ns);
            for (index, held) in all.iter().enumerate() {
                let before = all[..index].iter().filter(|other| other.taken_ns < held.asked_ns);
                if let Some(other) =
                    before.max_by_key(|other| other.token).filter(|other| other.token >= held.token)
                {
                    self.violations.push(format!("{name}: {held:?} came after {other:?}"));
                }
            }
            all.sort_by_key(|held| held.token);
            for pair in all.windows(2) {
                let [first, second] = [pair[0], pair[1]];
                let has_died = deaths.iter().any(|death| death.is_within(first.taken_ns, second.taken_ns));
                if first.token == second.token || first.held_ns >= second.taken_ns && !has_died {
                    self.violations.push(format!("{name}: {first:?} was held together with {second:?}"));
                }
            }
        }
    }

    pub fn summary(&self) -> String {
        let locked: usize = self.locks.values().map(Vec::len).sum();
        let there = self.regions.values().filter(|region| region.is_there).count();
        let moves: usize = self.regions.values().map(|region| region.places.len() - 1).sum();
        let Findings { added, in_doubt, gets, failed, .. } = self;
        format!(
            "{added} additions ({in_doubt} in doubt), {there} regions, {moves} moves, {gets} reads, {locked} locks; {failed} operations failed"
        )
    }
}

#[test]
fn judge_finds_wrong_counters_and_locks() {
    let found = |logs: &[&str]| {
        let mut findings = Findings::default();
        logs.iter().for_each(|log| findings.add(log));
        findings.judge_counters();
        findings.judge_locks(&[], &[]);
        findings.violations.len()
    };
    let (added, killed) = ("10 add counter\n20 add counter 0", "5 add counter");
    assert_eq!(found(&[added, "30 add counter\n40 add counter 1", killed]), 0);
    assert_eq!(found(&[added, "30 add counter\n40 add counter 2", killed]), 0);
    assert_eq!(found(&[added, "30 add counter\n40 add counter 2"]), 1, "one was done twice");
    assert_eq!(found(&[added, "30 add counter\n40 add counter 0"]), 1, "one is lost");
    let held = "50 lock till-0 7 10 20 45";
    assert_eq!(found(&[held, "90 lock till-0 8 15 46 80"]), 0);
    assert_eq!(found(&[held, "90 lock till-0 8 15 44 80"]), 1, "two hold it");
    assert_ne!(found(&[held, "90 lock till-0 6 30 46 80"]), 0, "its token is lower");
}

#[test]
fn judge_permits_missing_regions_only_after_a_death() {
    let mut findings = Findings::default();
    findings.add("10 place region 1\n20 place region ok\n30 place region 2\n40 place region ok");
    let is_due = |node, at_ns| {
        let death = Death { node, from_ns: at_ns, until_ns: at_ns };
        findings.regions_due(&[death]) == ["region"]
    };
    assert!(is_due(1, 50) && is_due(2, 25));
    assert!(!is_due(1, 35) && !is_due(2, 35) && !is_due(2, 50));
}

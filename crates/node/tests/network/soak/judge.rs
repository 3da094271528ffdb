//! What the logs of the workers, taken together, must not show.

use std::collections::{BTreeMap, BTreeSet};

/// So long after it was founded anew, a cluster has found together: two leases.
const FOUNDING_NS: u64 = 10_000_000_000;

/// A process that held memory ended, some time between these.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    pub node: u64,
    pub from_ns: u64,
    pub until_ns: u64,
}

impl Death {
    /// Whether it may have been within that time.
    fn is_within(&self, from_ns: u64, until_ns: u64) -> bool {
        self.from_ns <= until_ns && from_ns <= self.until_ns
    }
}

/// What was found, and what was looked at.
#[derive(Debug, Default)]
pub struct Findings {
    counters: BTreeMap<String, Counter>,
    regions: BTreeMap<String, Region>,
    locks: BTreeMap<String, Vec<Held>>,
    pub gets: u64,
    pub failed: u64,
    pub violations: Vec<String>,
}

#[derive(Debug, Default)]
struct Counter {
    /// What additions found there.
    olds: Vec<u64>,
    /// Additions of which nobody knows whether they were made.
    maybe: u64,
}

/// A region, and where it may be.
#[derive(Debug)]
struct Region {
    is_there: bool,
    places: Vec<Place>,
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
    /// Takes the log of one process.
    pub fn add(&mut self, log: &str) {
        // What has begun and not ended.
        let mut added: Option<String> = None;
        let mut moving: Option<(String, u64)> = None;
        for line in log.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            let now_ns = number(0);
            match words[1..] {
                ["add", name] => added = Some(name.to_owned()),
                ["add", name, how] => {
                    added = None;
                    let counter = self.counters.entry(name.to_owned()).or_default();
                    match how {
                        "no" => self.failed += 1,
                        "maybe" => counter.maybe += 1,
                        _ => counter.olds.push(number(3)),
                    }
                }
                ["put", name, "ok"] => {
                    self.regions.get_mut(name).expect("it was begun").is_there = true;
                }
                ["put", _, "failed"] => self.failed += 1,
                ["put", name, _] => {
                    let place = Place { node: number(3), from_ns: now_ns, until_ns: u64::MAX };
                    self.regions.insert(name.to_owned(), Region { is_there: false, places: vec![place] });
                }
                ["mv", name, "ok"] => {
                    let (_, to) = moving.take().expect("it was begun");
                    let places = &mut self.regions.get_mut(name).expect("it was put").places;
                    let last = places.len() - 1;
                    for (index, place) in places.iter_mut().enumerate() {
                        if index < last && place.node != to {
                            place.until_ns = place.until_ns.min(now_ns);
                        }
                    }
                }
                ["mv", _, "failed"] => {
                    moving = None;
                    self.failed += 1;
                }
                ["mv", name, _] => {
                    moving = Some((name.to_owned(), number(3)));
                    let place = Place { node: number(3), from_ns: now_ns, until_ns: u64::MAX };
                    self.regions.get_mut(name).expect("it was put").places.push(place);
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
        if let Some(name) = added {
            self.counters.entry(name).or_default().maybe += 1;
        }
    }

    /// Regions that must be there, for no node has died that could have held them.
    pub fn to_be_there(&self, deaths: &[Death]) -> Vec<String> {
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

    /// Nothing was added twice, and nothing is missing from counters whose last value is known.
    pub fn judge_counters(&mut self, values: &BTreeMap<String, u64>) {
        for (name, counter) in &self.counters {
            let distinct: BTreeSet<u64> = counter.olds.iter().copied().collect();
            if distinct.len() < counter.olds.len() {
                self.violations.push(format!("{name}: two found the same number"));
            }
            let Some(value) = values.get(name) else { continue };
            let known = counter.olds.len() as u64;
            if !(known..=known + counter.maybe).contains(value) {
                let maybe = counter.maybe;
                self.violations.push(format!("{name} is {value}; {known} were added, and {maybe} perhaps"));
            }
            if distinct.last().is_some_and(|last| last >= value) {
                self.violations.push(format!("{name} is {value}, and somebody found {distinct:?}"));
            }
        }
    }

    /// Tokens rise, and where no process has ended meanwhile, nobody holds a lock together with another.  A directory that is founded anew
    /// knows of nobody, and may give a lock away that is held, until all others have found it.
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
        let added: usize = self.counters.values().map(|counter| counter.olds.len()).sum();
        let maybe: u64 = self.counters.values().map(|counter| counter.maybe).sum();
        let locked: usize = self.locks.values().map(Vec::len).sum();
        let there = self.regions.values().filter(|region| region.is_there).count();
        let moves: usize = self.regions.values().map(|region| region.places.len() - 1).sum();
        let (gets, failed) = (self.gets, self.failed);
        format!(
            "{added} additions ({maybe} in doubt), {there} regions, {moves} moves, {gets} reads, {locked} locks; {failed} operations failed"
        )
    }
}

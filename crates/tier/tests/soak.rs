//! Random commands, kills and restarts under random schedules: every command ends, bytes are what was written, and
//! when everything has been given up no byte is used anywhere.

mod common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS};
use halite_tier::access::{Blocked, SlotRef};
use halite_tier::effect::OpId;
use halite_tier::effect::{Command, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::RegionCommand;
use halite_tier::permissions::{Permissions, Who};

const NODES: u32 = 4;
const TURNS: usize = 400;
const SEEDS: u64 = 60;

/// Xorshift: a failing seed is all that is needed to see the same again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 8) % limit
    }
}

/// What a region must hold; `None` once a death may have taken or torn it.
struct Region {
    name: String,
    bytes: Option<Vec<u8>>,
}

struct Handle {
    host: usize,
    slot: SlotRef,
    region: usize,
}

struct Soak {
    seed: u64,
    random: Random,
    cluster: Cluster,
    regions: Vec<Region>,
    handles: Vec<Handle>,
    pending: Vec<(usize, OpId, Option<usize>)>,
    names: usize,
    checked: u64,
}

impl Soak {
    fn new(seed: u64) -> Soak {
        let mut cluster = Cluster::of(NODES as usize);
        cluster.slow_wire = Some((seed as usize % 4, (seed / 4) as usize % 4));
        Soak {
            seed,
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            cluster,
            regions: Vec::new(),
            handles: Vec::new(),
            pending: Vec::new(),
            names: 0,
            checked: 0,
        }
    }

    fn live(&mut self) -> usize {
        let live: Vec<usize> =
            (0..self.cluster.hosts.len()).filter(|host| self.cluster.hosts[*host].running).collect();
        live[self.random.below(live.len() as u64) as usize]
    }

    fn turn(&mut self) {
        match self.random.below(100) {
            0..15 => self.alloc(),
            15..30 => self.map(),
            30..36 => self.on_handle(|soak, slot| {
                let to = NodeId(soak.random.below(u64::from(NODES)) as u32);
                Command::RegionCommand(slot, RegionCommand::Move { to })
            }),
            36..40 => self.free(),
            40..46 => self.unmap(),
            46..48 => self.on_handle(|_, slot| {
                let (who, permissions) = (Who::Everyone, Permissions::READ);
                Command::RegionCommand(slot, RegionCommand::Grant { who, permissions })
            }),
            48..50 => self.on_handle(|_, slot| {
                let (who, permissions) = (Who::Everyone, Permissions::WRITE);
                Command::RegionCommand(slot, RegionCommand::Revoke { who, permissions })
            }),
            50..51 => self.kill_and_restart(),
            51..75 => self.write(),
            _ => self.read(),
        }
        for _ in 0..self.random.below(30) {
            let pick = self.random.next();
            self.cluster.step_one(pick);
        }
        self.collect();
    }

    fn submit(&mut self, host: usize, command: Command, region: Option<usize>) {
        let op = self.cluster.submit(host, command);
        self.pending.push((host, op, region));
    }

    fn alloc(&mut self) {
        let host = self.live();
        self.names += 1;
        let name = format!("region-{}", self.names);
        let len = 1 + self.random.below(5 * CHUNK_BYTES);
        let node = |random: &mut Random| NodeId(random.below(u64::from(NODES)) as u32);
        let placement = match self.random.below(3) {
            0 => Placement::On(node(&mut self.random)),
            1 => Placement::Spread(vec![node(&mut self.random), node(&mut self.random)]),
            _ => Placement::Local,
        };
        let everyone = Permissions::READ | Permissions::WRITE;
        self.regions.push(Region { name: name.clone(), bytes: Some(vec![0; len as usize]) });
        let populate = self.random.below(2) == 0;
        let alloc =
            Command::Alloc { name: Some(name), len, chunk_bytes: CHUNK_BYTES, placement, everyone, populate };
        self.submit(host, alloc, Some(self.regions.len() - 1));
    }

    fn map(&mut self) {
        if self.regions.is_empty() {
            return;
        }
        let region = self.random.below(self.regions.len() as u64) as usize;
        let wanted = Permissions::READ | Permissions::WRITE;
        let host = self.live();
        self.submit(host, Command::Map { name: self.regions[region].name.clone(), wanted }, Some(region));
    }

    fn pick_handle(&mut self) -> Option<usize> {
        let count = self.handles.len() as u64;
        (count > 0).then(|| self.random.below(count) as usize)
    }

    fn on_handle(&mut self, command: impl FnOnce(&mut Soak, SlotRef) -> Command) {
        let Some(index) = self.pick_handle() else { return };
        let (host, slot) = (self.handles[index].host, self.handles[index].slot);
        let command = command(self, slot);
        self.submit(host, command, None);
    }

    fn free(&mut self) {
        let Some(index) = self.pick_handle() else { return };
        let Handle { host, slot, region } = self.handles[index];
        // From here on the region may be gone at any time.
        self.regions[region].bytes = None;
        self.submit(host, Command::RegionCommand(slot, RegionCommand::Free), None);
    }

    fn unmap(&mut self) {
        let Some(index) = self.pick_handle() else { return };
        let Handle { host, slot, .. } = self.handles.swap_remove(index);
        self.submit(host, Command::Unmap(slot), None);
    }

    fn write(&mut self) {
        let Some(index) = self.pick_handle() else { return };
        let Handle { host, slot, region } = self.handles[index];
        let Some(bytes) = &mut self.regions[region].bytes else { return };
        let at = self.random.below(bytes.len() as u64) as usize;
        let byte = self.random.next() as u8;
        let host = &self.cluster.hosts[host];
        match host.path.write(host.session, slot, at as u64, &[byte]) {
            Ok(_) => bytes[at] = byte,
            Err(Blocked::Changing) => {}
            Err(other) => panic!("seed {}: nothing happened to region {region}, yet {other:?}", self.seed),
        }
    }

    fn read(&mut self) {
        let Some(index) = self.pick_handle() else { return };
        let Handle { host, slot, region } = self.handles[index];
        let Some(bytes) = &self.regions[region].bytes else { return };
        let at = self.random.below(bytes.len() as u64) as usize;
        let (host, mut found) = (&self.cluster.hosts[host], [0]);
        match host.path.read(host.session, slot, at as u64, &mut found) {
            Ok(_) => assert_eq!(found[0], bytes[at], "seed {}: byte {at} of region {region}", self.seed),
            Err(Blocked::Changing) => {}
            Err(other) => panic!("seed {}: nothing happened to region {region}, yet {other:?}", self.seed),
        }
        self.checked += 1;
    }

    fn kill_and_restart(&mut self) {
        let host = self.live();
        let node = self.cluster.hosts[host].life.node.0;
        self.cluster.kill(host);
        for region in &mut self.regions {
            region.bytes = None;
        }
        self.handles.retain(|handle| handle.host != host);
        self.pending.retain(|(at, ..)| *at != host);
        // Sometimes the others have seen the death through before it comes back, sometimes not.
        for _ in 0..self.random.below(40) {
            let pick = self.random.next();
            self.cluster.step_one(pick);
        }
        self.cluster.add_late(node, ARENA_BYTES);
    }

    fn collect(&mut self) {
        let mut still = Vec::new();
        for (host, op, region) in std::mem::take(&mut self.pending) {
            match (self.cluster.outcome(host, op), region) {
                (None, _) => still.push((host, op, region)),
                (Some(Ok(Outcome::Mapped { slot, .. })), Some(region)) => {
                    self.handles.push(Handle { host, slot, region });
                }
                (Some(_), _) => {}
            }
        }
        self.pending = still;
    }

    fn finish(mut self) -> u64 {
        self.cluster.run();
        self.collect();
        assert!(self.pending.is_empty(), "seed {}: commands without an end: {:?}", self.seed, self.pending);
        let host = self.live();
        let Ok(Outcome::List { regions: all, .. }) = self.cluster.command(host, Command::List) else {
            panic!("seed {}: no list", self.seed)
        };
        for info in all {
            let name = info.name.expect("listed by name");
            let map = Command::Map { name: name.clone(), wanted: Permissions::MASTER };
            let slot = common::slot(self.cluster.command(host, map));
            let freed = self.cluster.command(host, Command::RegionCommand(slot, RegionCommand::Free));
            assert_eq!(freed, Ok(Outcome::Done), "seed {}: {name}", self.seed);
        }
        self.cluster.sleep(2 * LEASE_NS);
        for host in 0..self.cluster.hosts.len() {
            if self.cluster.hosts[host].running {
                assert_eq!(self.cluster.memory(host), (0, 0), "seed {}: host {host}", self.seed);
            }
        }
        self.checked
    }
}

#[test]
fn commands_end_bytes_last_and_memory_comes_back_whatever_happens() {
    let mut checked = 0;
    for seed in 1..=SEEDS {
        let mut soak = Soak::new(seed);
        for _ in 0..TURNS {
            soak.turn();
        }
        checked += soak.finish();
    }
    assert!(checked > SEEDS * 10, "the soak must read what it wrote: {checked} reads");
}

//! A network address translator (NAT) on the path changes addresses, from the start or later.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use halite_fabric::{Event, Fabric, Operation, Status};
use halite_providers::secure::Secret;
use halite_providers::{Hosts, RoceConfig, RoceFabric};

use crate::common::Cluster;
use crate::common::pair::Pair;
use crate::common::{bytes_of, inline, remote};
use crate::traffic::Traffic;
use crate::world::Network;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Makes UDP packets of the first side leave from other ports.
fn translate(network: &Network) {
    let chain = "type nat hook postrouting priority 100 ; policy accept ;";
    network.run_ok(0, "nft add table ip translated");
    network.run_ok(0, &format!("nft add chain ip translated leaving {{ {chain} }}"));
    network.run_ok(0, "nft add rule ip translated leaving ip protocol udp snat to 10.77.0.1:40000-40010");
}

fn is_translated(address: SocketAddr) -> bool {
    address.ip().to_string() == "10.77.0.1" && (40_000..=40_010).contains(&address.port())
}

/// Posts a write whose packets arrive from another address. Returns when the other end has reported that address.
fn write_from_other_address(pair: &mut Pair) -> halite_fabric::Key {
    let key = pair.ends[1].register(64).0;
    pair.post(0, Operation::Write { local: inline(b"translated"), remote: remote(key, 0) });
    let change = pair.wait_for("packets from another address", |pair| {
        let end = &pair.ends[1];
        end.fabric.address_change(end.peer).filter(|change| change.packets >= 3)
    });
    assert!(is_translated(change.seen), "{change}");
    assert_eq!(change.agreed, pair.ends[0].fabric.local_address());
    key
}

#[test]
fn a_changed_address_is_reported_and_the_connection_recovers_when_it_returns() {
    let Some(network) = Network::new() else { return };
    let cluster = Cluster::new();
    let mut pair = network.connect(
        [0, 1].map(|side| RoceConfig { lease: Duration::from_secs(600), ..network.config(&cluster, side) }),
    );
    let mut traffic = Traffic::new(&pair, 3);
    traffic.run(&mut pair, 20);
    let (key, memory) = pair.ends[1].register(64);
    translate(&network);
    let id = pair.post(0, Operation::Write { local: inline(b"salt"), remote: remote(key, 0) });
    write_from_other_address(&mut pair);
    assert!(pair.ends.iter().all(|end| end.events.is_empty()), "no connection ends");
    assert_eq!(bytes_of(&memory, 0, 4), [0; 4]);
    network.run_ok(0, "nft delete table ip translated");
    let completion = pair.wait_for("a completion", |pair| pair.ends[0].take_completion());
    assert_eq!(
        (completion.status, completion.kind),
        (Status::Success, halite_fabric::CompletionKind::Done { id })
    );
    assert_eq!(bytes_of(&memory, 0, 4), *b"salt");
    pair.wait_for("the other completion", |pair| pair.ends[0].take_completion());
    traffic.run(&mut pair, 20);
}

#[test]
fn dialling_through_an_address_translation_fails_with_a_reason() {
    let Some(network) = Network::new() else { return };
    let cluster = Cluster::new();
    std::fs::create_dir_all(&cluster.0).unwrap();
    translate(&network);
    let secret = Secret::new().unwrap();
    let [from, to] = [0, 1].map(|side| {
        let mut config = network.config(&cluster, side);
        config.dir.push(&config.name);
        // The dialled end reports the address after half of the timeout.
        config.handshake_timeout = Duration::from_secs(4);
        let listen = SocketAddr::new(config.address, 0);
        network.inside(side, || {
            config.hosts = Some(Hosts::listen(listen, secret.clone().into()).unwrap());
            RoceFabric::open(config).unwrap()
        })
    });
    let port = to.control_port().unwrap();
    network.inside(0, || from.connect(&port.to_string(), b""));
    let begin = Instant::now();
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(begin.elapsed() < TIMEOUT, "timed out");
        network.inside(1, || to.poll(&mut Vec::new()));
        network.inside(0, || from.poll(&mut events));
    }
    let Event::ConnectFailed(failure) = &events[0] else { panic!("{events:?}") };
    let offered = from.local_address();
    assert!(failure.reason.contains("packets of the peer come from 10.77.0.1:400"), "{}", failure.reason);
    assert!(
        failure.reason.contains(&format!("not from {offered}, which the peer offered")),
        "{}",
        failure.reason
    );
}

//! Negotiates lanes without connection state at the responder, and makes their grants.
//!
//! Requests and messages pass through a [`halite_rnic::stateless::Lane`]; the queue pairs only probe the path. The
//! responder belongs to the socket, and keeps no state per peer. The connection remains the only state per peer: its
//! addresses, the salts of its keys, and the lanes.

use std::io;
use std::net::SocketAddr;

use halite_rnic::Mtu;
use halite_rnic::stateless::{Grant, Responder, Rights};
use halite_rnic::wire::Qpn;
use rustix::rand::{GetRandomFlags, getrandom};

use super::greeting::{Grants, LaneGrant, Offer};

/// The time T of the responders, in ns. An interruption of the network of up to 2 T ends no connection. The record of
/// effects covers 3 T.
const EFFECT_LIFE_NS: u64 = 500_000_000;

/// The end of a connection that keeps the state for requests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ResponderMode {
    /// Both ends: each request and its answer move the state of a queue pair.
    #[default]
    Stateful,
    /// The requesting end alone, if the peer is set to `Stateless` or `Auto`.
    Stateless,
    /// As the peer is set; `Stateful` if the peer is set to `Auto`, too.
    Auto,
}

impl ResponderMode {
    /// All modes.
    pub const ALL: [ResponderMode; 3] =
        [ResponderMode::Stateful, ResponderMode::Stateless, ResponderMode::Auto];

    /// Returns the name in settings.
    pub fn name(self) -> &'static str {
        match self {
            ResponderMode::Stateful => "stateful",
            ResponderMode::Stateless => "stateless",
            ResponderMode::Auto => "auto",
        }
    }

    /// Returns a description for users.
    pub fn summary(self) -> &'static str {
        match self {
            ResponderMode::Stateful => "queue pairs: each end keeps state for each peer",
            ResponderMode::Stateless => {
                "the end that requests keeps the state, with peers set to stateless or auto"
            }
            ResponderMode::Auto => "stateless with peers set to stateless, otherwise stateful",
        }
    }
}

/// Returns true if the lanes of two ends are stateless, with the reason. Both ends decide the same.
// [ROCE-STATELESS-10]
pub(super) fn agree(ours: &Offer, theirs: &Offer) -> (bool, &'static str) {
    use ResponderMode::{Auto, Stateful, Stateless};
    match (ours.responder, theirs.responder) {
        (Stateful, _) => (false, "this node is set to stateful"),
        (_, Stateful) => (false, "the peer is set to stateful, or its release has no other mode"),
        (Auto, Auto) => (false, "both nodes are set to auto, none to stateless"),
        _ if ours.mtu.min(theirs.mtu) < Mtu::Bytes1024 => {
            (false, "the path carries no packets with 1,024 bytes of payload")
        }
        (Stateless, _) => (true, "this node is set to stateless"),
        (Auto, Stateless) => (true, "the peer is set to stateless"),
    }
}

/// Returns a responder for a socket, with a random secret.
pub(super) fn new_responder() -> io::Result<Responder> {
    let mut secret = [0; 32];
    getrandom(&mut secret, GetRandomFlags::empty())?;
    Ok(Responder::with_effect_life(1, secret, EFFECT_LIFE_NS))
}

/// Returns the grants for the peer at `to` with these queue pairs: they permit all registered memory, and messages.
pub(super) fn grants_of(responder: &Responder, to: SocketAddr, qpns: &[Qpn]) -> Grants {
    std::array::from_fn(|lane| {
        let Grant { epoch, effect_life_ns, key, .. } = responder.grant(to, qpns[lane], 0, Rights::AnyKey);
        LaneGrant { epoch, effect_life_ns, key }
    })
}

/// Converts a lane's grant to the form of the requester.
pub(super) fn grant_of(qpn: Qpn, grant: &LaneGrant) -> Grant {
    let LaneGrant { epoch, effect_life_ns, key } = *grant;
    Grant { qpn, rkey: 0, rights: Rights::AnyKey, effect_life_ns, epoch, key }
}

#[cfg(test)]
mod tests {
    use halite_rnic::wire::Psn;

    use super::super::greeting::LaneOffer;
    use super::*;

    fn offer(responder: ResponderMode, mtu: Mtu) -> Offer {
        let lanes = [LaneOffer { qpn: Qpn::new(2), psn: Psn::new(0) }; 2];
        let address = "127.0.0.1:4".parse().expect("an address");
        Offer { address, mtu, salt: 0, lanes, lanes_max: 2, selective: true, tells_waits: true, responder }
    }

    #[test]
    fn lanes_are_stateless_if_one_end_asks_and_the_other_permits_it() {
        use ResponderMode::{Auto, Stateful, Stateless};
        let agree = |one, other| {
            let both = [one, other].map(|mode| offer(mode, Mtu::Bytes1024));
            let agreed = agree(&both[0], &both[1]).0;
            assert_eq!(agree(&both[1], &both[0]).0, agreed, "both ends decide the same");
            agreed
        };
        let modes = [Stateful, Stateless, Auto];
        let agreed: Vec<_> = modes
            .iter()
            .flat_map(|one| modes.iter().map(move |other| (*one, *other)))
            .filter(|(one, other)| agree(*one, *other))
            .collect();
        assert_eq!(agreed, [(Stateless, Stateless), (Stateless, Auto), (Auto, Stateless)]);
        let narrow = offer(Stateless, Mtu::Bytes512);
        assert!(!super::agree(&offer(Stateless, Mtu::Bytes4096), &narrow).0);
    }
}

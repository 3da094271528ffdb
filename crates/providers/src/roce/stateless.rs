//! Which connections have lanes without connection state at the responder, and the grants of such lanes.
//!
//! Requests and messages pass through a [`halite_rnic::stateless::Lane`]; the queue pairs only probe the path. The
//! responder belongs to the socket and keeps no state per peer. What remains per peer is the connection: its addresses,
//! the salts of its keys, and the lanes.

use std::io;
use std::net::SocketAddr;

use halite_rnic::Mtu;
use halite_rnic::stateless::{Grant, Responder, Rights};
use halite_rnic::wire::Qpn;
use rustix::rand::{GetRandomFlags, getrandom};

use super::greeting::{Grants, LaneGrant, Offer};

/// The time T of the responders, in ns: an interruption of the network of up to twice this time ends no connection. The
/// record of effects covers three times this time.
const EFFECT_LIFE_NS: u64 = 500_000_000;

/// The end of a connection that keeps the state for requests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ResponderMode {
    /// Both ends: each request and its answer move the state of a queue pair.
    #[default]
    Stateful,
    /// The requesting end alone, if the peer is set to `Stateless` or `Auto`.
    Stateless,
    /// As the peer asks.
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

/// Returns true if the lanes of two ends are stateless, and the reason. Both ends come to the same decision.
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

/// Returns the grants of the peer at `to` with these queue pairs: all registered memory, and messages.
pub(super) fn grants_of(responder: &Responder, to: SocketAddr, qpns: &[Qpn]) -> Grants {
    std::array::from_fn(|lane| {
        let Grant { epoch, effect_life_ns, key, .. } = responder.grant(to, qpns[lane], 0, Rights::AnyKey);
        LaneGrant { epoch, effect_life_ns, key }
    })
}

/// Returns a lane's grant in the form of the requester.
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
            assert_eq!(agree(&both[1], &both[0]).0, agreed, "both ends decide alike");
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

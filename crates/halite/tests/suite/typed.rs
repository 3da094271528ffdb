//! Calls with values instead of bytes.

use crate::common;

use std::time::Duration;

use common::Dir;
use halite::{CallCause, Function, NodeId, ServeOptions, typed};
use serde::{Deserialize, Serialize, Serializer};

/// Timeout of calls; an answered call takes much less.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Order {
    name: String,
    grams: Option<u32>,
    to: Vec<(u8, f64)>,
}

const REVERSE: typed::Function<Order, Result<Order, String>> = typed::Function::new(7);

fn reversed(mut order: Order) -> Result<Order, String> {
    order.to.reverse();
    if order.grams.is_some() { Ok(order) } else { Err(format!("how much {}?", order.name)) }
}

#[test]
fn typed_values_round_trip() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let (here, there) = (first.blocking_session(), second.blocking_session());
    let server = there.serve_typed(REVERSE, ServeOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let answering = server.clone();
        scope.spawn(move || {
            while let Ok(call) = answering.recv() {
                assert_eq!(call.node(), NodeId(0));
                let answer = reversed(call.input().clone());
                call.reply(&answer).unwrap();
            }
        });
        for (grams, count) in [(None, 0), (Some(0), 1), (Some(u32::MAX), 20_000)] {
            let to = (0..count).map(|index| (index as u8, f64::from(index) / 3.0)).collect();
            let order = Order { name: "salt".into(), grams, to };
            let answer = here.call_typed(NodeId(1), REVERSE, &order, TIMEOUT);
            assert_eq!(answer, Ok(reversed(order)));
        }
        server.close();
    });
    let order = Order { name: "salt".into(), grams: None, to: Vec::new() };
    let gone = here.call_typed(NodeId(1), REVERSE, &order, TIMEOUT).unwrap_err();
    let typed::CallError::Call(gone) = gone else { panic!("{gone}") };
    assert_eq!(gone.cause, CallCause::UnknownFunction);
}

/// A type that cannot be encoded.
#[derive(Deserialize)]
struct Unencodable;

impl Serialize for Unencodable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("this type has no encoding"))
    }
}

#[test]
fn values_without_an_encoding_are_errors() {
    let dir = Dir::new();
    let node = dir.join(0);
    let session = node.blocking_session();
    let server = session.serve(Function(4), ServeOptions::default()).unwrap();
    let unencodable: typed::Function<Unencodable, u64> = typed::Function::new(4);
    let unsent = session.call_typed(NodeId(0), unencodable, &Unencodable, TIMEOUT).unwrap_err();
    assert!(matches!(unsent, typed::CallError::Encode { function: 4, .. }), "{unsent}");
    assert!(!unsent.may_have_run());
    assert!(server.try_recv().unwrap().is_none(), "nothing was sent");
    std::thread::scope(|scope| {
        scope.spawn(|| server.recv().unwrap().reply(&[0xFF, 0xFF]).unwrap());
        let other: typed::Function<u8, String> = typed::Function::new(4);
        let nonsense = session.call_typed(NodeId(0), other, &1, TIMEOUT).unwrap_err();
        assert!(matches!(nonsense, typed::CallError::Decode { node: NodeId(0), .. }), "{nonsense}");
        assert!(nonsense.may_have_run());
    });
    let unanswered: typed::Function<u8, Unencodable> = typed::Function::new(5);
    let server = session.serve_typed(unanswered, ServeOptions::default()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let refused = server.recv().unwrap().reply(&Unencodable).unwrap_err();
            assert!(matches!(refused, typed::ReplyError::Encode(_)), "{refused}");
        });
        let given_up = session.call(NodeId(0), Function(5), &[1], TIMEOUT).unwrap_err();
        assert_eq!(given_up.cause, CallCause::NoReply);
    });
}

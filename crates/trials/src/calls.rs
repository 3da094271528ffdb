//! Calls.

use std::rc::Rc;

use halite::Driven;

use crate::actor::Actor;
use crate::stage::Stage;

/// What is known of all calls.
#[derive(Debug, Default)]
pub(crate) struct Calls {}

pub(crate) fn serve(_stage: &Rc<Stage>, _node: u32, _driven: &Driven) {}

pub(crate) async fn act(_actor: &mut Actor) {}

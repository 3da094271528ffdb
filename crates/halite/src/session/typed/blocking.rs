//! Typed calls for threads.

use std::marker::PhantomData;
use std::time::Duration;

use halite_tier::ids::NodeId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Call, CallError, Function};
use crate::session::blocking::{self, Session};
use crate::{ServeError, ServeOptions};

/// A served function with typed calls. Its methods block; [`super::Server`] has the same ones for tasks.
#[derive(Debug)]
pub struct Server<I, O> {
    server: blocking::Server,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O> Clone for Server<I, O> {
    fn clone(&self) -> Self {
        Server { server: self.server.clone(), types: PhantomData }
    }
}

impl<I: DeserializeOwned, O: Serialize> Server<I, O> {
    /// Blocks until a call arrives whose input can be decoded, and returns it. See [`super::Server::recv`].
    pub fn recv(&self) -> Result<Call<I, O>, ServeError> {
        loop {
            if let Some(call) = Call::decode(self.server.recv()?) {
                return Ok(call);
            }
        }
    }

    /// Ends the function for all its receivers. See [`crate::Server::close`].
    pub fn close(&self) {
        self.server.close();
    }
}

/// Calls with typed inputs and outputs, for threads.
impl Session {
    /// Serves a function with typed input and output. See [`crate::Session::serve_typed`].
    pub fn serve_typed<I: DeserializeOwned, O: Serialize>(
        &self,
        function: Function<I, O>,
        options: ServeOptions,
    ) -> Result<Server<I, O>, ServeError> {
        Ok(Server { server: self.serve(function.function, options)?, types: PhantomData })
    }

    /// Calls a function with typed input and output; blocks until its answer arrives. See
    /// [`crate::Session::call_typed`].
    pub fn call_typed<I: Serialize, O: DeserializeOwned>(
        &self,
        node: NodeId,
        function: Function<I, O>,
        input: &I,
        timeout: Duration,
    ) -> Result<O, CallError> {
        let input = function.encode_input(node, input)?;
        let output = self.call(node, function.function, &input, timeout)?;
        function.decode_output(node, &output)
    }
}

//! Typed calls: a thin layer over [`Session::call`] and [`Session::serve`] that encodes values with serde and postcard.
//!
//! A [`Function`] carries the types of input and output. Both sides must declare the same types; nothing checks this.
//! If bytes do not decode, the server drops the call and continues, and the caller fails with
//! [`CallCause::NoReply`](crate::CallCause::NoReply).
//!
//! ```
//! # use halite::{Config, Node, NodeId, ServeOptions, typed};
//! # use std::time::Duration;
//! # let dir = std::env::temp_dir().join(format!("halite-doc-typed-{}", std::process::id()));
//! # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
//! const SUM: typed::Function<Vec<u32>, u64> = typed::Function::new(7);
//!
//! let session = node.blocking_session();
//! let server = session.serve_typed(SUM, ServeOptions::default())?;
//! std::thread::scope(|scope| {
//!     scope.spawn(move || {
//!         let call = server.recv().expect("the server is open");
//!         let sum = call.input().iter().copied().map(u64::from).sum();
//!         call.reply(&sum).expect("the caller waits");
//!     });
//!     let sum = session.call_typed(NodeId(0), SUM, &vec![1, 2, 3], Duration::from_secs(10))?;
//!     assert_eq!(sum, 6);
//!     Ok::<(), typed::CallError>(())
//! })?;
//! # drop((session, node));
//! # std::fs::remove_dir_all(dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod blocking;

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use halite_tier::ids::NodeId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::session::{Session, calls};
use crate::{ServeError, ServeOptions};

/// A function with input `I` and output `O`, which a node serves under a number.
pub struct Function<I, O> {
    function: calls::Function,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O> Function<I, O> {
    /// Returns the function with this number. Both sides must use the same types.
    pub const fn new(number: u32) -> Function<I, O> {
        Function { function: calls::Function(number), types: PhantomData }
    }
}

impl<I, O> Clone for Function<I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for Function<I, O> {}

impl<I, O> fmt::Debug for Function<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.function.fmt(f)
    }
}

/// A call with typed input and output failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The input cannot be encoded; nothing was sent.
    #[error("cannot call function {function} at node {node}: the input cannot be encoded: {cause}")]
    Encode {
        /// The node that serves the function.
        node: NodeId,
        /// Number of the function.
        function: u32,
        /// The error that postcard reports.
        cause: postcard::Error,
    },
    /// The call failed before its answer could be decoded.
    #[error(transparent)]
    Call(#[from] crate::CallError),
    /// The answer cannot be decoded: the handler ran, but with other types.
    #[error(
        "cannot decode the answer of function {function} of node {node}: {cause}; check that both sides use the same types"
    )]
    Decode {
        /// The node that serves the function.
        node: NodeId,
        /// Number of the function.
        function: u32,
        /// The error that postcard reports.
        cause: postcard::Error,
    },
}

impl CallError {
    /// Returns true if the handler may have run; see [`crate::CallError::may_have_run`].
    pub fn may_have_run(&self) -> bool {
        match self {
            CallError::Encode { .. } => false,
            CallError::Call(error) => error.may_have_run,
            CallError::Decode { .. } => true,
        }
    }
}

/// A typed answer did not reach its caller.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The output cannot be encoded; the caller gets an error.
    #[error("cannot answer: the output cannot be encoded: {0}")]
    Encode(postcard::Error),
    /// The answer could not be sent.
    #[error(transparent)]
    Reply(#[from] crate::ReplyError),
}

/// A served function with typed calls, for tasks; see [`crate::Server`].
pub struct Server<I, O> {
    server: calls::Server,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O> Clone for Server<I, O> {
    fn clone(&self) -> Self {
        Server { server: self.server.clone(), types: PhantomData }
    }
}

impl<I, O> fmt::Debug for Server<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}

impl<I: DeserializeOwned, O: Serialize> Server<I, O> {
    /// Receives the next call whose input can be decoded.
    pub async fn recv(&self) -> Result<Call<I, O>, ServeError> {
        loop {
            if let Some(call) = Call::decode(self.server.recv().await?) {
                return Ok(call);
            }
        }
    }

    /// Ends the function for all its receivers, as [`crate::Server::close`] does.
    pub fn close(&self) {
        self.server.close();
    }
}

/// A call to answer, with a decoded input; see [`crate::Call`].
pub struct Call<I, O> {
    call: calls::Call,
    input: I,
    types: PhantomData<fn() -> O>,
}

impl<I: fmt::Debug, O> fmt::Debug for Call<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("call", &self.call).field("input", &self.input).finish()
    }
}

impl<I: DeserializeOwned, O: Serialize> Call<I, O> {
    /// Decodes the input. If it does not decode, drops the call, so that its caller fails, and returns `None`.
    fn decode(call: calls::Call) -> Option<Call<I, O>> {
        let input = decode(call.input()).ok()?;
        Some(Call { call, input, types: PhantomData })
    }

    /// Returns the caller's input.
    pub fn input(&self) -> &I {
        &self.input
    }

    /// Returns the caller's principal.
    pub fn caller(&self) -> &str {
        self.call.caller()
    }

    /// Returns the caller's node.
    pub fn node(&self) -> NodeId {
        self.call.node()
    }

    /// Returns true if the caller still waits, as [`crate::Call::is_wanted`] does.
    pub fn is_wanted(&self) -> bool {
        self.call.is_wanted()
    }

    /// Answers the call, without waiting.
    pub fn reply(self, output: &O) -> Result<(), ReplyError> {
        let output = postcard::to_stdvec(output).map_err(ReplyError::Encode)?;
        Ok(self.call.reply(&output)?)
    }
}

/// Calls with typed inputs and outputs.
impl Session {
    /// Serves a function with typed input and output, as [`Session::serve`] does with bytes.
    pub fn serve_typed<I: DeserializeOwned, O: Serialize>(
        &self,
        function: Function<I, O>,
        options: ServeOptions,
    ) -> Result<Server<I, O>, ServeError> {
        Ok(Server { server: self.serve(function.function, options)?, types: PhantomData })
    }

    /// Calls a function with typed input and output, as [`Session::call`] does with bytes.
    pub async fn call_typed<I: Serialize, O: DeserializeOwned>(
        &self,
        node: NodeId,
        function: Function<I, O>,
        input: &I,
        timeout: Duration,
    ) -> Result<O, CallError> {
        let input = function.encode_input(node, input)?;
        let output = self.call(node, function.function, &input, timeout).await?;
        function.decode_output(node, &output)
    }
}

impl<I: Serialize, O: DeserializeOwned> Function<I, O> {
    fn encode_input(self, node: NodeId, input: &I) -> Result<Vec<u8>, CallError> {
        let function = self.function.0;
        postcard::to_stdvec(input).map_err(|cause| CallError::Encode { node, function, cause })
    }

    fn decode_output(self, node: NodeId, output: &[u8]) -> Result<O, CallError> {
        let function = self.function.0;
        decode(output).map_err(|cause| CallError::Decode { node, function, cause })
    }
}

/// Decodes a value from all of the bytes. Fails if bytes remain, because the types then differ.
fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, postcard::Error> {
    let (value, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() { Ok(value) } else { Err(postcard::Error::DeserializeBadEncoding) }
}

//! Atomics: what several processes agree with.

use super::{Row, Sizes, row, ucx};

/// The rows in their order.
pub fn rows(sizes: &Sizes) -> Vec<Row> {
    vec![
        row("fetch-add 8 B", "us", None, "UCX fadd", ucx("ucp_fadd", 8, sizes.small)),
        row("compare-swap 8 B", "us", None, "UCX cswap", ucx("ucp_cswap", 8, sizes.small)),
    ]
}

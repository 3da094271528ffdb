//! The public API over shared memory.

mod direct {
    use lab::conformance::embedded::Direct;

    lab::conformance_suite!(Direct);
}

mod by_call {
    use lab::conformance::embedded::ByCall;

    lab::conformance_suite!(ByCall);
}

mod posted {
    use lab::conformance::embedded::Posted;

    lab::conformance_suite!(Posted);
}

//! The public API over shared memory.

mod direct {
    use lab::conformance::shm::Direct;

    lab::conformance_suite!(Direct);
}

mod by_call {
    use lab::conformance::shm::ByCall;

    lab::conformance_suite!(ByCall);
}

mod posted {
    use lab::conformance::shm::Posted;

    lab::conformance_suite!(Posted);
}

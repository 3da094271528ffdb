//! The public API over shared memory, with names in etcd.

use lab::conformance::etcd::NamesInEtcd;

lab::conformance_suite!(NamesInEtcd);

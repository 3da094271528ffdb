//! What may be wrong with an etcd, as one who is to mend it tells it apart.

use std::fmt;

/// What is wrong with an etcd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EtcdFault {
    /// Nobody answers at its address, or not in time.
    Unreachable,
    /// Its certificate is not by the authorities that are named, is out of date or another host's; or it does not take ours.
    Certificate,
    /// It does not know the user, or the password is wrong, or the user may not do that.
    User,
    /// It has no room left.
    Full,
    /// Who answers is no etcd of 3.4 or newer, or speaks TLS where none is expected, or the other way round.
    Foreign,
    /// A file that the address names is not to be read, or holds something else.
    File,
}

impl EtcdFault {
    /// As the middle of a sentence about it.
    pub fn as_str(self) -> &'static str {
        match self {
            EtcdFault::Unreachable => "does not answer",
            EtcdFault::Certificate => "and this side do not trust each other's certificates",
            EtcdFault::User => "refuses the user",
            EtcdFault::Full => "has no room left",
            EtcdFault::Foreign => "does not answer as etcd does",
            EtcdFault::File => "cannot be asked without a file that its address names",
        }
    }

    /// What who looks after it may do, as the end of a sentence.
    pub fn remedy(self) -> &'static str {
        match self {
            EtcdFault::Unreachable => {
                "see that etcd runs, that the address is right, and that nothing between drops packets"
            }
            EtcdFault::Certificate => {
                "see that ca names who has signed etcd's certificate, that this is for the host in the address, and that etcd trusts who has signed ours"
            }
            EtcdFault::User => {
                "see that the user exists, has the password that the address names, and a role that may read and write all below the prefix"
            }
            EtcdFault::Full => {
                "compact and defragment it (etcdctl compact, etcdctl defrag), or raise its quota, and disarm the alarm"
            }
            EtcdFault::Foreign => {
                "see that an etcd of 3.4 or newer is at that address, with its gateway on (--enable-grpc-gateway)"
            }
            EtcdFault::File => "put the file there, and let the user of the node read it",
        }
    }
}

/// What is wrong with an etcd, in its own words or those of the system, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct EtcdError {
    /// What it is.
    pub fault: EtcdFault,
    /// In detail.
    pub reason: String,
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it {}: {}; {}", self.fault.as_str(), self.reason, self.fault.remedy())
    }
}

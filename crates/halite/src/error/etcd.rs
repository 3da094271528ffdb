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
            EtcdFault::Certificate => "and this node do not trust each other's certificates",
            EtcdFault::User => "refuses the user",
            EtcdFault::Full => "is full",
            EtcdFault::Foreign => "is not an etcd server",
            EtcdFault::File => "needs a file that its address names",
        }
    }

    /// What who looks after it may do, as the end of a sentence.
    pub fn remedy(self) -> &'static str {
        match self {
            EtcdFault::Unreachable => {
                "check that etcd runs, the address is right, and no firewall drops packets"
            }
            EtcdFault::Certificate => {
                "check that ca= names the signer of etcd's certificate, that the certificate is for this host name, and that etcd trusts the signer of cert="
            }
            EtcdFault::User => {
                "check the user, its password, and that its role may read and write all keys below the prefix"
            }
            EtcdFault::Full => {
                "compact and defragment it (etcdctl compact, etcdctl defrag), or raise its quota, and disarm the alarm"
            }
            EtcdFault::Foreign => {
                "check that etcd 3.4 or newer is at that address, with --enable-grpc-gateway"
            }
            EtcdFault::File => "provide the file, readable by the node's user",
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

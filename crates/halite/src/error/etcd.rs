//! Faults of an etcd, grouped by remedy.

use std::fmt;

/// Kind of a fault of etcd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EtcdFault {
    /// etcd does not answer at its address, or not in time.
    Unreachable,
    /// The certificate of etcd is not signed by the given authorities, has expired, or is for another host; or etcd
    /// rejects this node's certificate.
    Certificate,
    /// etcd has users, and refuses a client certificate with a CommonName.
    CommonName,
    /// The address has a user, but authentication is off in etcd.
    NoUsers,
    /// etcd does not know the user, the password is wrong, or the user lacks a permission.
    User,
    /// etcd has no room left.
    Full,
    /// The server is not an etcd 3.4 or newer, or only one of the two ends uses TLS.
    Foreign,
    /// A file named in the address cannot be read, or its content is invalid.
    File,
}

impl EtcdFault {
    /// Returns the fault as the predicate of a sentence about etcd, such as "is full".
    pub fn as_str(self) -> &'static str {
        match self {
            EtcdFault::Unreachable => "does not answer",
            EtcdFault::Certificate => "and this node do not trust each other's certificates",
            EtcdFault::CommonName => "refuses the client certificate because of its CommonName",
            EtcdFault::NoUsers => "has authentication switched off",
            EtcdFault::User => "refuses the user",
            EtcdFault::Full => "is full",
            EtcdFault::Foreign => "is not an etcd server",
            EtcdFault::File => "needs a file that its address names",
        }
    }

    /// Returns the remedy as an imperative, for the end of a sentence.
    pub fn remedy(self) -> &'static str {
        match self {
            EtcdFault::Unreachable => {
                "check that etcd runs, the address is right, and no firewall drops packets"
            }
            EtcdFault::Certificate => {
                "check that ca= names the signer of etcd's certificate, that the certificate is for this host name, and that etcd trusts the signer of cert="
            }
            EtcdFault::CommonName => {
                "name by cert= a certificate without CommonName, or run etcd without --client-cert-auth"
            }
            EtcdFault::NoUsers => {
                "remove user and password from the address, or switch authentication on (etcdctl auth enable)"
            }
            EtcdFault::User => {
                "check the user, its password, and that its role may read and write all keys below the prefix"
            }
            EtcdFault::Full => {
                "compact and defragment etcd (etcdctl compact, etcdctl defrag), or raise its quota, and disarm the alarm"
            }
            EtcdFault::Foreign => {
                "check that etcd 3.4 or newer is at that address, with --enable-grpc-gateway"
            }
            EtcdFault::File => "provide the file, readable by the node's user",
        }
    }
}

/// A fault of etcd: its kind, the details, and a remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct EtcdError {
    /// Kind of the fault.
    pub fault: EtcdFault,
    /// Details, as etcd or the system reports them.
    pub reason: String,
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd {}: {}; {}", self.fault.as_str(), self.reason, self.fault.remedy())
    }
}

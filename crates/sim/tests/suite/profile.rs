//! Checks of hardware profiles.

use halite_sim::{Profile, ProfileError};

#[test]
fn all_built_in_profiles_are_valid() {
    for name in Profile::NAMES {
        assert!(Profile::named(name).unwrap().check().is_ok(), "{name}");
    }
    assert!(matches!(Profile::named("abacus"), Err(ProfileError::Unknown { .. })));
}

#[test]
fn an_invalid_profile_names_its_field() {
    let local = Profile::toml("local").unwrap();
    let error = |text: &str| Profile::from_toml(text).unwrap_err().to_string();
    assert!(error(&format!("{local}\npots_ns = 3\n")).contains("pots_ns"));
    assert!(error(&local.replace("post_ns =", "# post_ns =")).contains("post_ns"));
    assert!(error(&local.replace("queue_depth = ", "queue_depth = 0 # ")).contains("queue_depth is 0"));
    assert!(error(&local.replace("mtu_bytes = ", "mtu_bytes = 12 # ")).contains("mtu_bytes is 12"));
    assert!(error("post_ns = \"soon\"").contains("post_ns"));
    assert!(error(&local.replace("\"processor\"", "\"adapter\"")).contains("cut_off"));
    assert!(
        error(&local.replace("acknowledged = \"adapter\"", "acknowledged = \"process\"")).contains("cut_off")
    );
    let roce = Profile::toml("roce-100g").unwrap();
    assert!(error(&roce.replace("mtu_bytes = 4096", "mtu_bytes = 4000")).contains("mtu_bytes must be 256"));
    let cx3 = Profile::toml("cx3-40g").unwrap();
    let without = cx3.replace("cached_keys =", "cached_keys = 0 #");
    let endless = cx3.replace("wire_ns =", "wire_ns = 2_000_000_000 #");
    assert!(error(&endless).contains("wire_ns is 2000000000; it must be between 0 and 1000000000"));
    assert!(error(&without).contains("adapter.cached_keys is 0"));
    assert!(error(&cx3.replace("clock_mhz =", "clock_mhz = 0 #")).contains("processor.clock_mhz is 0"));
    let units = &cx3[cx3.find("[adapter]").unwrap()..];
    assert!(error(&format!("{local}\n{units}")).contains("[adapter] requires"));
    assert!(error(&local.replace("lanes = 1", "lanes = 2")).contains("lanes is 2"));
    assert!(error(&local.replace("pcie_ns = 0", "pcie_ns = 9")).contains("pcie_ns is 9"));
}

//! Streams of random numbers.

use halite_sim::Random;

#[test]
fn numbers_never_change() {
    let mut random = Random::new(1, "wire");
    let drawn = [random.bits(), random.bits(), random.bits()];
    assert_eq!(drawn, [16934986701001996436, 11497121632400140811, 12308508471155631259]);
}

#[test]
fn streams_and_seeds_are_independent() {
    let first = |seed, stream| Random::new(seed, stream).bits();
    assert_eq!(first(1, "wire"), first(1, "wire"));
    assert_ne!(first(1, "wire"), first(2, "wire"));
    assert_ne!(first(1, "wire"), first(1, "order"));
}

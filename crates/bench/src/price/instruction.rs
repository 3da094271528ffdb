//! Classifies x86-64 instructions, as far as `price` counts them.

/// Maximum length of an instruction, in bytes.
pub(super) const BYTES_MAX: usize = 15;

/// Class of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// The instruction locks a cache line, or waits until all stores are visible.
    Locked,
    SystemCall,
    Other,
}

/// Classifies the instruction at the start of `bytes`.
pub(super) fn classify(bytes: &[u8]) -> Class {
    let prefixes = bytes.iter().take_while(|byte| is_prefix(**byte)).count();
    let (prefixes, code) = bytes.split_at(prefixes);
    let has_lock = prefixes.contains(&0xF0);
    // A REX prefix follows all others.
    let code = match code.first() {
        Some(0x40..=0x4F) => &code[1..],
        _ => code,
    };
    match code {
        _ if has_lock => Class::Locked,
        // An exchange with memory locks even without the prefix.
        [0x86 | 0x87, operand, ..] if operand >> 6 != 3 => Class::Locked,
        // mfence
        [0x0F, 0xAE, 0xF0..=0xF7, ..] => Class::Locked,
        [0x0F, 0x05, ..] => Class::SystemCall,
        _ => Class::Other,
    }
}

fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0xF0 | 0xF2 | 0xF3 | 0x2E | 0x36 | 0x3E | 0x26 | 0x64 | 0x65 | 0x66 | 0x67)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_are_distinguished_from_others() {
        let locked: [&[u8]; 5] = [
            &[0xF0, 0x0F, 0xB1, 0x0F],       // lock cmpxchg [rdi], ecx
            &[0xF0, 0x48, 0x0F, 0xC1, 0x07], // lock xadd [rdi], rax
            &[0x48, 0x87, 0x07],             // xchg [rdi], rax
            &[0x86, 0x47, 0x10],             // xchg [rdi+16], al
            &[0x0F, 0xAE, 0xF0],             // mfence
        ];
        locked.iter().for_each(|code| assert_eq!(classify(code), Class::Locked, "{code:x?}"));
        let others: [&[u8]; 5] = [
            &[0x48, 0x87, 0xC3],       // xchg rbx, rax
            &[0x66, 0x90],             // nop
            &[0x0F, 0xAE, 0xE8],       // lfence
            &[0xF3, 0x90],             // pause
            &[0x48, 0x89, 0x07, 0xF0], // mov [rdi], rax, followed by a lock prefix
        ];
        others.iter().for_each(|code| assert_eq!(classify(code), Class::Other, "{code:x?}"));
        assert_eq!(classify(&[0x0F, 0x05]), Class::SystemCall);
    }
}

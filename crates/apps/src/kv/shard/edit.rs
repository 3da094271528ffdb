//! Requests that change parts of a value.

use super::super::decimal::{self, NoSum};
use super::super::fields::Field;
use super::super::layout::VALUE_BYTES_MAX;
use super::super::wire::{Answer, Request};

/// Changes a value as requested, and encodes the answer. Returns true if the value has changed and must be written.
pub(super) fn edit_value(
    value: &mut Vec<u8>,
    request: &Request<'_>,
    answer: &mut Vec<u8>,
) -> Result<bool, Answer<'static>> {
    let fit = |end: Option<u64>| {
        let end = end.and_then(|end| usize::try_from(end).ok());
        end.filter(|end| *end <= VALUE_BYTES_MAX).ok_or(Answer::TooLong)
    };
    match *request {
        Request::SetRange { value: [], .. } => {
            Answer::Number(value.len() as i64).encode(answer);
            return Ok(false);
        }
        Request::SetRange { offset, value: part, .. } => {
            let end = fit(offset.checked_add(part.len() as u64))?;
            value.resize(value.len().max(end), 0);
            value[end - part.len()..end].copy_from_slice(part);
            Answer::Number(value.len() as i64).encode(answer);
        }
        Request::SetBit { offset, bit, .. } => {
            let end = fit(Some(offset / 8 + 1))?;
            value.resize(value.len().max(end), 0);
            let (byte, mask) = (&mut value[end - 1], 1 << (7 - offset % 8));
            Answer::Number(i64::from(*byte & mask != 0)).encode(answer);
            *byte = if bit { *byte | mask } else { *byte & !mask };
        }
        Request::AddFloat { value: number, .. } => {
            *value = decimal::sum(value, number)
                .map_err(|why| match why {
                    NoSum::NotANumber => Answer::NotAFloat,
                    NoSum::Infinite => Answer::Infinite,
                })?
                .into_bytes();
            Answer::Bytes(0, value).encode(answer);
        }
        Request::BitFields { value: fields, .. } => {
            let fields = Field::decode_all(fields).ok_or(Answer::Malformed)?;
            let written = || fields.iter().filter(|field| field.writes());
            let mut len = value.len();
            for field in written() {
                len = len.max(field.bytes_min().ok_or(Answer::TooLong)?);
            }
            value.resize(len, 0);
            let mut results = Vec::with_capacity(fields.len() * 9);
            for field in &fields {
                let number = field.apply(value);
                results.push(number.is_some().into());
                results.extend(number.unwrap_or(0).to_le_bytes());
            }
            Answer::Bytes(0, &results).encode(answer);
            return Ok(written().next().is_some());
        }
        _ => return Err(Answer::Malformed),
    }
    Ok(true)
}

//! New inputs from old ones.

use crate::random::Random;

/// Longest input in bytes. Longer ones show nothing that these do not, and take their time.
pub const MAX_LEN: usize = 4096;

/// What a target's inputs are made of.
#[derive(Clone, Debug)]
pub struct Mutator {
    /// Whether they are text.
    pub text: bool,
    /// Words that random changes would not find.
    pub tokens: Vec<&'static str>,
}

impl Mutator {
    /// A new input from one of these.
    pub fn make(&self, random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = random.pick(corpus).cloned().unwrap_or_default();
        // Mostly few changes: many leave nothing of what made the old input reach far.
        let changes = 1 + random.below(3) + if random.one_in(4) { random.below(16) } else { 0 };
        for _ in 0..changes {
            if self.text && !random.one_in(4) {
                self.change_text(random, &mut input, corpus);
            } else {
                self.change_bytes(random, &mut input, corpus);
            }
        }
        input.truncate(MAX_LEN);
        input
    }

    fn change_bytes(&self, random: &mut Random, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        match random.below(12) {
            how @ 0..4 => {
                let at = random.below(input.len());
                let Some(byte) = input.get_mut(at) else { return };
                *byte = match how {
                    0 | 1 => *byte ^ 1 << random.below(8),
                    2 => random.byte(),
                    _ => byte.wrapping_add(random.below(16) as u8).wrapping_sub(8),
                };
            }
            4 => overwrite_with_a_number(random, input),
            5 => drop(input.drain(range(random, input.len(), 32))),
            6 => input.truncate(random.below(input.len() + 1)),
            7 => {
                let more = 1 + random.below(32);
                input.extend((0..more).map(|_| random.byte()));
            }
            8 => {
                let copy = input[range(random, input.len(), 64)].to_vec();
                insert(random, input, &copy);
            }
            9 => {
                let bytes: Vec<u8> = (0..1 + random.below(8)).map(|_| random.byte()).collect();
                insert(random, input, &bytes);
            }
            10 => {
                if let Some(token) = random.pick(&self.tokens) {
                    insert(random, input, token.as_bytes());
                }
            }
            _ => cross(random, input, corpus),
        }
    }

    fn change_text(&self, random: &mut Random, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        match random.below(8) {
            0 => self.replace_word(random, input, u8::is_ascii_digit),
            1 => {
                self.replace_word(random, input, |byte| byte.is_ascii_alphabetic() || *byte == b'_')
            }
            2 => change_lines(random, input, |random, lines| {
                let line = lines[random.below(lines.len())].clone();
                lines.insert(random.below(lines.len() + 1), line);
            }),
            3 => change_lines(random, input, |random, lines| {
                drop(lines.remove(random.below(lines.len())));
            }),
            4 => change_lines(random, input, |random, lines| {
                let (one, other) = (random.below(lines.len()), random.below(lines.len()));
                lines.swap(one, other);
            }),
            5 => change_lines(random, input, |random, lines| {
                // A line of another input: what belongs to another story.
                let other = random.pick(corpus).map_or(&[][..], Vec::as_slice);
                let theirs: Vec<&[u8]> = other.split(|byte| *byte == b'\n').collect();
                if let Some(line) = random.pick(&theirs) {
                    lines.insert(random.below(lines.len() + 1), line.to_vec());
                }
            }),
            6 => change_a_level(random, input),
            _ => cross(random, input, corpus),
        }
    }

    /// Puts something else in the place of one number or name.
    fn replace_word(
        &self,
        random: &mut Random,
        input: &mut Vec<u8>,
        is_part: impl Fn(&u8) -> bool,
    ) {
        let starts: Vec<usize> = (0..input.len())
            .filter(|at| is_part(&input[*at]) && (*at == 0 || !is_part(&input[at - 1])))
            .collect();
        let Some(start) = random.pick(&starts).copied() else { return };
        let len = input[start..].iter().take_while(|byte| is_part(byte)).count();
        let new = if input[start].is_ascii_digit() {
            match random.below(3) {
                0 => random.below(12).to_string(),
                1 => random.bits().to_string(),
                _ => interesting_text(random),
            }
        } else {
            (*random.pick(&self.tokens).unwrap_or(&"")).to_owned()
        };
        input.splice(start..start + len, new.bytes());
    }
}

/// A number at which programs break: a power of two, or next to one.
fn interesting(random: &mut Random) -> u64 {
    ((1_u128 << random.below(65)) + random.below(3) as u128 - 1) as u64
}

/// The same for texts.
fn interesting_text(random: &mut Random) -> String {
    match random.below(16) {
        0 => "-1".into(),
        1 => "0.5".into(),
        2 => "1e308".into(),
        // One more than the greatest.
        3 => "18446744073709551616".into(),
        _ => interesting(random).to_string(),
    }
}

/// Some neighbouring places, at most `most`.
fn range(random: &mut Random, len: usize, most: usize) -> std::ops::Range<usize> {
    let from = random.below(len + 1);
    from..(from + random.below(most + 1)).min(len)
}

fn insert(random: &mut Random, input: &mut Vec<u8>, what: &[u8]) {
    let at = random.below(input.len() + 1);
    input.splice(at..at, what.iter().copied());
}

fn overwrite_with_a_number(random: &mut Random, input: &mut [u8]) {
    let number = interesting(random);
    let len = 1 << random.below(4);
    let at = random.below(input.len());
    let (little, big) = (number.to_le_bytes(), number.to_be_bytes());
    let bytes = if random.one_in(2) { &little[..len] } else { &big[8 - len..] };
    for (to, from) in input.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

/// The front of one input and the back of another.
fn cross(random: &mut Random, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    let Some(other) = random.pick(corpus) else { return };
    input.truncate(random.below(input.len() + 1));
    input.extend_from_slice(&other[random.below(other.len() + 1)..]);
}

fn change_lines(
    random: &mut Random,
    input: &mut Vec<u8>,
    change: impl FnOnce(&mut Random, &mut Vec<Vec<u8>>),
) {
    let mut lines: Vec<Vec<u8>> = input.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    change(random, &mut lines);
    *input = lines.join(&b'\n');
}

/// Wraps a part in brackets, or takes a bracket away: JSON of another shape.
fn change_a_level(random: &mut Random, input: &mut Vec<u8>) {
    if random.one_in(2) {
        let part = range(random, input.len(), 64);
        let (open, close) = if random.one_in(2) { (b'[', b']') } else { (b'{', b'}') };
        input.insert(part.end, close);
        input.insert(part.start, open);
        return;
    }
    let places: Vec<usize> =
        (0..input.len()).filter(|at| b"[]{},:\"".contains(&input[*at])).collect();
    if let Some(at) = random.pick(&places) {
        input.remove(*at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs_and_another_one_others() {
        let mutator = Mutator { text: true, tokens: vec!["join", "leave"] };
        let corpus = [b"0 {\"type\":\"join\",\"rank\":1}\n0 close".to_vec(), b"tick 5".to_vec()];
        let make = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| mutator.make(&mut random, &corpus)).collect::<Vec<_>>()
        };
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
        assert!(make(3).iter().all(|input| input.len() <= MAX_LEN));
    }

    #[test]
    fn nothing_is_needed_to_begin_with() {
        let mut random = Random::new(4);
        for text in [false, true] {
            let mutator = Mutator { text, tokens: Vec::new() };
            let longest = (0..1000).map(|_| mutator.make(&mut random, &[]).len()).max();
            assert!(longest > Some(8), "{longest:?}");
        }
    }
}

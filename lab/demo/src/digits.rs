//! The data set: 8 × 8 images of handwritten digits. Origin and layout: `data/README.md`.

use crate::random::Random;

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// Kinds of digits.
pub const CLASSES: usize = 10;
/// Images that are kept for testing.
pub const TEST_IMAGES: usize = 360;

const TEXT: &str = include_str!("../data/digits.txt");
const SPLIT: u64 = 1;

/// Images and what they show.
#[derive(Clone, Debug, Default)]
pub struct Images {
    /// [`PIXELS`] values an image, each from 0 to 1.
    pub pixels: Vec<f32>,
    /// The digits.
    pub labels: Vec<u8>,
}

/// A line of the data set that is not as it should be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the data set: expected a digit, a space and {PIXELS} characters 0-9, a-g")]
pub struct Malformed {
    /// Its number, from 1.
    pub line: usize,
}

impl Images {
    /// All images, in the order of the file.
    ///
    /// # Errors
    /// A line that is not in the layout.
    pub fn load() -> Result<Self, Malformed> {
        Self::parse(TEXT)
    }

    fn parse(text: &str) -> Result<Self, Malformed> {
        let mut images = Self::default();
        for (line, row) in (1..).zip(text.lines()) {
            let malformed = || Malformed { line };
            let (label, pixels) = row.split_once(' ').ok_or_else(malformed)?;
            let label: u8 = label.parse().map_err(|_| malformed())?;
            if usize::from(label) >= CLASSES || pixels.len() != PIXELS {
                return Err(malformed());
            }
            for pixel in pixels.chars() {
                let grey = pixel.to_digit(17).ok_or_else(malformed)?;
                images.pixels.push(grey as f32 / 16.0);
            }
            images.labels.push(label);
        }
        Ok(images)
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The images at `indices`, in that order.
    pub fn select(&self, indices: &[usize]) -> Self {
        let mut selected = Self::default();
        for &i in indices {
            selected.pixels.extend_from_slice(&self.pixels[i * PIXELS..(i + 1) * PIXELS]);
            selected.labels.push(self.labels[i]);
        }
        selected
    }

    /// Divides into images for training and [`TEST_IMAGES`] for testing, by lot.
    pub fn split(&self, seed: u64) -> (Self, Self) {
        let mut order: Vec<usize> = (0..self.len()).collect();
        Random::new(seed, SPLIT).shuffle(&mut order);
        let (train, test) = order.split_at(self.len().saturating_sub(TEST_IMAGES));
        (self.select(train), self.select(test))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counts are those of the source.
    #[test]
    fn the_data_set_is_complete() {
        let images = Images::load().unwrap();
        assert_eq!(images.len(), 1797);
        let mut counts = [0; CLASSES];
        images.labels.iter().for_each(|label| counts[usize::from(*label)] += 1);
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        let sum: f64 = images.pixels.iter().map(|p| f64::from(*p) * 16.0).sum();
        assert_eq!(sum, 561_718.0);
        assert!(images.pixels.iter().all(|p| (0.0..=1.0).contains(p)));
    }

    #[test]
    fn the_split_depends_on_the_seed_alone_and_loses_nothing() {
        let images = Images::load().unwrap();
        let (train, test) = images.split(7);
        assert_eq!((train.len(), test.len()), (1437, 360));
        assert_eq!(images.split(7).1.pixels, test.pixels);
        assert_ne!(images.split(8).1.labels, test.labels);
        let sum = |images: &Images| images.labels.iter().map(|l| u32::from(*l)).sum::<u32>();
        assert_eq!(sum(&train) + sum(&test), sum(&images));
    }

    #[test]
    fn malformed_lines_are_named() {
        let good = TEXT.lines().next().unwrap();
        for bad in ["", "x", &good[..60], &good.replace('0', "h"), &good.replacen('0', "12", 1)] {
            let text = format!("{good}\n{bad}\n");
            assert_eq!(Images::parse(&text).unwrap_err(), Malformed { line: 2 }, "{bad}");
        }
    }
}

//! A trace with the shape of published ones.

use std::fmt::Write;

use fastrand::Rng;

/// Returns a CSV file of `jobs` jobs that keep a cluster of `gpus` GPUs busy for 85 % of the
/// time on average.
///
/// The shape is that of the traces of Microsoft's Philly (Jeon et al., ATC 2019), SenseTime's
/// Helios (Hu et al., SC 2021) and Alibaba's clusters (Weng et al., NSDI 2022): most jobs have
/// one GPU, the others nearly always a power of two; durations are log-normal over four
/// orders of magnitude, and longer for larger jobs; few projects submit most jobs, in bursts;
/// days are busier than nights.
pub(crate) fn trace(seed: u64, jobs: usize, gpus: f64) -> String {
    let mut random = Rng::with_seed(seed);
    let sizes = [
        (1, 0.80),
        (2, 0.06),
        (4, 0.06),
        (8, 0.065),
        (16, 0.01),
        (32, 0.005),
    ];
    let drawn: Vec<(u32, f64, usize)> = (0..jobs)
        .map(|_| {
            let mut left = random.f64();
            let size = sizes.iter().find(|(_, share)| {
                left -= share;
                left < 0.0
            });
            let size = size.map_or(1, |(size, _)| *size);
            let median = 600.0 * f64::from(size).sqrt();
            let duration = (median * (1.8 * normal(&mut random)).exp()).clamp(10.0, 7.0 * 86_400.0);
            // Zipf: project n has a share of about 1/n.
            let project = (20.0_f64.powf(random.f64()) as usize).min(19);
            (size, duration.round(), project)
        })
        .collect();
    let work: f64 = drawn.iter().map(|one| f64::from(one.0) * one.1).sum();
    let mean = work / (0.85 * gpus) / jobs as f64;
    let mut time = 0.0;
    let mut text = "time,gpus,duration,project\n".to_owned();
    for (size, duration, project) in drawn {
        let hour = time / 3_600.0 % 24.0;
        let day = 1.0 + 0.5 * ((hour - 14.0) / 24.0 * std::f64::consts::TAU).cos();
        let gap = if random.f64() < 0.3 { 0.0 } else { 1.0 / 0.7 };
        time += -(1.0 - random.f64()).ln() * mean * gap / day;
        writeln!(text, "{time:.1},{size},{duration},project-{project}").unwrap();
    }
    text
}

/// Returns a value of the standard normal distribution (Box and Muller).
fn normal(random: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

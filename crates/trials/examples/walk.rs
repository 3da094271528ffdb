use halite_trials::{Keep, Plan, run};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let plan = Plan::from_toml(&std::fs::read_to_string(&args[1]).unwrap()).unwrap();
    let (from, to): (u64, u64) = (args[2].parse().unwrap(), args[3].parse().unwrap());
    let begin = std::time::Instant::now();
    let (mut bad, mut ops) = (0, 0);
    for seed in from..to {
        let r = run(&plan, seed, if to - from == 1 { Keep::All } else { Keep::Nothing }).unwrap();
        ops += r.operations_count();
        if to - from == 1 {
            print!("{r}");
            for l in &r.trace {
                println!("{l}");
            }
        }
        if let Some(v) = r.violation {
            bad += 1;
            println!("seed {seed}: {}", v.chars().take(300).collect::<String>());
        }
    }
    println!(
        "{} seeds, {bad} bad, {ops} ops, {:.1} ms/seed, {:.0} ops/s",
        to - from,
        begin.elapsed().as_secs_f64() * 1e3 / (to - from) as f64,
        ops as f64 / begin.elapsed().as_secs_f64()
    );
}

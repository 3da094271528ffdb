//! `halite sim list`: the built-in plans and profiles.

use halite_sim::Profile;
use halite_trials::Plan;
use serde::Serialize;

use crate::args::Listing;
use crate::output;
use crate::table::{Align, Table};

#[derive(Serialize)]
struct Row {
    plan: &'static str,
    nodes: u32,
    sessions: u32,
    duration_us: u64,
    lease_us: u64,
    fault_gap_us: u64,
    profile: String,
    /// True if `halite sim soak` runs it by default.
    soaked: bool,
}

pub fn run(args: &Listing) -> anyhow::Result<()> {
    let rows = Plan::names().map(row).collect::<Result<Vec<Row>, _>>()?;
    match args.json {
        true => rows.iter().try_for_each(output::print_json)?,
        false => output::print(&format!("{}\nprofiles: {}\n", table(&rows), Profile::NAMES.join(", ")))?,
    }
    Ok(())
}

fn row(name: &'static str) -> Result<Row, halite_trials::PlanError> {
    let plan = Plan::named(name)?;
    Ok(Row {
        plan: name,
        nodes: plan.nodes,
        sessions: plan.sessions,
        duration_us: plan.duration_us,
        lease_us: plan.lease_us,
        fault_gap_us: plan.faults.gap_us,
        profile: match plan.hosts {
            None => plan.profile,
            Some(_) => {
                format!("{} in {}", plan.host_profile.unwrap_or_else(|| "local".to_owned()), plan.profile)
            }
        },
        soaked: Plan::SMALL.contains(&name),
    })
}

fn table(rows: &[Row]) -> Table {
    let right = |heading| (heading, Align::Right);
    let mut table = Table::new(&[
        ("plan", Align::Left),
        right("nodes"),
        right("sessions each"),
        right("usec"),
        right("lease[usec]"),
        right("usec between faults"),
        ("profile", Align::Left),
        ("soaked", Align::Left),
    ]);
    for row in rows {
        let gap = if row.fault_gap_us == 0 { "none".to_owned() } else { row.fault_gap_us.to_string() };
        table.row(vec![
            row.plan.to_owned(),
            row.nodes.to_string(),
            row.sessions.to_string(),
            row.duration_us.to_string(),
            row.lease_us.to_string(),
            gap,
            row.profile.clone(),
            if row.soaked { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table
}

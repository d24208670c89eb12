//! `top` on a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState};
use xdp_agg::observe::api::{Job, RankState};

use super::model::{Model, block_time, late, members, rank_cells, slots};

/// Lines of events.
const EVENTS: u16 = 6;

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let ports = model.state.ports.len().min(8) as u16 + 2;
    let warnings = model.state.daemon.warnings.len() as u16;
    let head = 1 + warnings + u16::from(model.error.is_some());
    let heights = [
        Constraint::Length(head),
        Constraint::Min(4),
        Constraint::Length(ports),
        Constraint::Length(EVENTS + 1),
        Constraint::Length(1),
    ];
    let [top, middle, below, news, keys] = Layout::vertical(heights).areas(frame.area());
    frame.render_widget(headline(model), top);
    match model.shown() {
        Some(job) => ranks(frame, middle, job),
        None => jobs(frame, middle, model),
    }
    traffic(frame, below, model);
    events(frame, news, model);
    let paused = if model.paused { ", paused" } else { "" };
    let words = format!(
        "sorted by {}{paused}  s sort  r reverse  enter ranks  esc back  p pause  q quit",
        model.sort.word()
    );
    frame.render_widget(Line::from(words).dim(), keys);
}

fn headline(model: &Model) -> Paragraph<'_> {
    let mut lines = vec![Line::from(model.headline()).bold()];
    lines.extend(
        model.state.daemon.warnings.iter().map(|warning| Line::from(warning.as_str()).yellow()),
    );
    lines.extend(model.error.iter().map(|error| Line::from(error.as_str()).red()));
    Paragraph::new(lines)
}

fn head(names: &'static str) -> Row<'static> {
    Row::new(names.split('|').map(Cell::from)).style(Style::new().add_modifier(Modifier::BOLD))
}

fn jobs(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let rows = model.jobs().into_iter().map(|job| {
        let rate = |of: fn(&super::model::Rates) -> String| {
            model.rates(job).map_or_else(|| "-".into(), |rates| of(&rates))
        };
        let late = late(job);
        let style = if late == "-" { Style::new() } else { Style::new().red().bold() };
        Row::new([
            Cell::from(job.name.as_str()),
            Cell::from(job.phase.as_str()),
            Cell::from(members(job)),
            Cell::from(rate(|rates| quantity(rates.blocks))),
            Cell::from(rate(|rates| quantity(rates.bytes))),
            Cell::from(block_time(job.completion.p50_seconds)),
            Cell::from(block_time(job.completion.p99_seconds)),
            Cell::from(slots(job)),
            Cell::from(rate(|rates| quantity(rates.repeats))),
            Cell::from(Span::styled(late, style)),
        ])
    });
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Fill(2),
    ];
    let table = Table::new(rows, widths)
        .header(head("JOB|PHASE|MEMBERS|BLOCKS/S|SUM B/S|MEDIAN|P99|SLOTS|REPEATS/S|LATE"))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::new().title("jobs").title_style(Style::new().dim()));
    let mut state = TableState::new().with_selected(model.chosen());
    frame.render_stateful_widget(table, area, &mut state);
}

fn ranks(frame: &mut Frame<'_>, area: Rect, job: &Job) {
    let mut ranks: Vec<_> = job.ranks.iter().collect();
    // The latest first: there may be more than lines.
    let key = |rank: &&xdp_agg::observe::api::Rank| rank.lag_seconds.unwrap_or(0.0);
    ranks.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.rank.cmp(&b.rank)));
    let rows = ranks.into_iter().map(|rank| {
        let style = match rank.state {
            RankState::Ok => Style::new(),
            RankState::Late | RankState::Lost => Style::new().red().bold(),
            _ => Style::new().yellow(),
        };
        Row::new(rank_cells(rank)).style(style)
    });
    let widths = [
        Constraint::Length(5),
        Constraint::Length(8),
        Constraint::Fill(1),
        Constraint::Length(12),
        Constraint::Length(8),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(9),
    ];
    let title = format!("ranks of {}, epoch {}, {}", job.name, job.epoch, job.phase);
    let table = Table::new(rows, widths)
        .header(head("RANK|STATE|ADDRESS|NEXT BLOCK|BEHIND|WAITED FOR|HEARTBEAT|REPEATS"))
        .block(Block::new().title(title).title_style(Style::new().dim()));
    frame.render_widget(table, area);
}

fn traffic(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let rows = model.state.ports.iter().map(|port| {
        let rates = model.port_rates(port);
        let cell = |rate: Option<f64>| Cell::from(rate.map_or_else(|| "-".into(), quantity));
        Row::new([
            Cell::from(port.name.as_str()),
            if port.up { Cell::from("up") } else { Cell::from("down").red() },
            cell(rates.map(|rates| rates.rx_packets)),
            cell(rates.map(|rates| rates.rx_bytes)),
            cell(rates.map(|rates| rates.tx_packets)),
            cell(rates.map(|rates| rates.tx_bytes)),
        ])
    });
    let rate = Constraint::Length(10);
    let widths = [Constraint::Fill(1), Constraint::Length(5), rate, rate, rate, rate];
    let table = Table::new(rows, widths)
        .header(head("PORT|STATE|RX PKT/S|RX B/S|TX PKT/S|TX B/S"))
        .block(Block::new().title("ports").title_style(Style::new().dim()));
    frame.render_widget(table, area);
}

fn events(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let latest = model.events.iter().rev().take(EVENTS.into());
    let lines: Vec<_> = latest.map(|event| Line::from(event.text.as_str())).collect();
    let block = Block::new().title("events, the latest first").title_style(Style::new().dim());
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// A number in at most six characters.
fn quantity(number: f64) -> String {
    let scales = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match scales.into_iter().find(|(scale, _)| number >= *scale) {
        Some((scale, unit)) => format!("{:.1}{unit}", number / scale),
        None => format!("{number:.1}"),
    }
}

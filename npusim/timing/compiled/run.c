/* A run from its first cycle to its last event. */
#include <stdlib.h>

#include "engine.h"

static void *zeros(Run *run, i64 count, i64 size) {
    void *found = calloc((size_t)larger(count, 1), (size_t)size);
    if (!found) run->failed = OUT_OF_MEMORY;
    return found;
}

/* ---- what copies ask for ---- */

static i64 place_of(const Run *run, i64 copy, i64 phase) {
    uint64_t mixed = ((uint64_t)copy * 1024 + (uint64_t)phase) * 0x9E3779B97F4A7C15u;
    i64 place = (i64)(mixed >> 20) & (run->known_room - 1);
    while (run->known[place] &&
           (run->known[place]->copy != copy || run->known[place]->phase != phase))
        place = (place + 1) & (run->known_room - 1);
    return place;
}

static void make_room(Run *run) {
    if (2 * run->known_count < run->known_room) return;
    Known **before = run->known;
    i64 room = run->known_room;
    run->known = zeros(run, 2 * room, sizeof(Known *));
    if (run->failed) {
        run->known = before;
        return;
    }
    run->known_room = 2 * room;
    for (i64 i = 0; i < room; i++)
        if (before[i]) run->known[place_of(run, before[i]->copy, before[i]->phase)] = before[i];
    free(before);
}

Known *find_known(Run *run, i64 copy, i64 phase) {
    i64 place = place_of(run, copy, phase);
    if (run->known[place]) return run->known[place];
    make_room(run);
    Known *known = zeros(run, 1, sizeof(Known));
    if (run->failed) {
        free(known);
        return 0;
    }
    known->copy = copy;
    known->phase = phase;
    run->known[place_of(run, copy, phase)] = known;
    run->known_count++;
    if (run->problem->ask(copy, phase, &known->asked)) {
        run->failed = STOPPED;
        return 0;
    }
    return known;
}

/* ---- the beginning and the end ---- */

static void make_links(Run *run) {
    const Problem *problem = run->problem;
    const i64 widths[4] = {problem->gm_read_width, problem->gm_write_width, problem->l2_read_width,
                           problem->l2_write_width};
    for (int i = 0; i < 4; i++) {
        run->links[i].width = widths[i];
        run->links[i].index = i;
    }
    run->links[0].most_rested = problem->gm_most_rested;
    run->links[3].most_rested = problem->l2_most_rested;
    run->gm_reads = &run->links[0];
    run->gm_writes = &run->links[problem->shared_bus ? 0 : 1];
    run->l2_reads = &run->links[2];
    run->l2_writes = &run->links[3];
}

static void make_lane(Run *run, i64 number) {
    const Problem *problem = run->problem;
    Lane *lane = run->lanes + number;
    lane->number = number;
    lane->cores = problem->members[number].cores;
    lane->code = problem->codes + problem->members[number].code;
    lane->decoder = problem->decoders + lane->code->decoder;
    lane->bindings = problem->bindings + number * problem->names;
    lane->pipes = zeros(run, problem->pipes, sizeof(Pipe));
    lane->loads = zeros(run, problem->pipes, sizeof(Load));
    lane->raised = zeros(run, lane->decoder->flags, sizeof(Queue));
    lane->arrived = zeros(run, problem->cross_flags, sizeof(i64));
    if (run->failed) return;
    for (i64 pipe = 0; pipe < problem->pipes; pipe++) lane->pipes[pipe].waits_for = WORKLESS;
    lane->pipes[problem->scalar].waits_for = READY;
    push(run, &lane->runnable, problem->scalar);
}

static void make(Run *run) {
    const Problem *problem = run->problem;
    i64 copies = problem->lanes * problem->pipes, lines = problem->first_line[problem->tensors];
    run->lanes = zeros(run, problem->lanes, sizeof(Lane));
    run->asked = zeros(run, 2 * copies, sizeof(Load *));
    run->found = zeros(run, copies, sizeof(Found));
    run->first_missing = zeros(run, copies, sizeof(i64));
    run->most_missing = zeros(run, copies, sizeof(i64));
    run->coming = zeros(run, copies, sizeof(Coming));
    run->readers = zeros(run, lines, sizeof(i32));
    run->brought = zeros(run, lines, sizeof(i32));
    run->fetched_at = zeros(run, lines, sizeof(i64));
    run->fetched = zeros(run, lines, sizeof(i32));
    run->last_fetch = -problem->gm_read_latency;
    for (i64 i = 0; i < problem->volume_count; i++) push(run, &run->volumes, problem->volumes[i]);
    for (i64 i = 0; i < 2 * problem->stored_count; i++) push(run, &run->stored, problem->stored[i]);
    run->known_room = 256;
    run->known = zeros(run, run->known_room, sizeof(Known *));
    make_links(run);
    for (i64 i = 0; i < problem->lanes && !run->failed; i++) make_lane(run, i);
}

static void clear(Run *run) {
    const Problem *problem = run->problem;
    for (i64 i = 0; run->lanes && i < problem->lanes; i++) {
        Lane *lane = run->lanes + i;
        for (i64 flag = 0; lane->raised && flag < lane->decoder->flags; flag++)
            free(lane->raised[flag].items);
        free(lane->pipes);
        free(lane->loads);
        free(lane->raised);
        free(lane->arrived);
        free(lane->opened.items);
        free(lane->left.items);
        free(lane->runnable.items);
    }
    for (i64 i = 0; run->known && i < run->known_room; i++) free(run->known[i]);
    for (int i = 0; i < 4; i++) free(run->links[i].moving);
    void *rest[] = {run->lanes,         run->asked,        run->found,
                    run->first_missing, run->most_missing, run->readers,
                    run->brought,       run->fetched_at,   run->fetched,
                    run->missing,       run->coming,
                    run->known,         run->events,       run->volumes.items,
                    run->tiles,         run->stored.items, run->free_tiles.items};
    for (unsigned i = 0; i < sizeof rest / sizeof *rest; i++) free(rest[i]);
}

static void happen(Run *run, Event event) {
    run->now = event.cycle;
    switch (event.kind) {
    case ON_CROSS_SET:
        cross_set_arrived(run, event.a, event.b);
        break;
    case ON_REQUEST:
        memory_start(run, &run->lanes[event.a].loads[event.b]);
        break;
    case ON_LINK:
        link_leave(run, &run->links[event.a], event.b);
        break;
    case ON_END_OF_CYCLE:
        memory_serve(run);
    }
}

static void tell_waiting(const Run *run) {
    const Problem *problem = run->problem;
    for (i64 i = 0; i < problem->lanes; i++)
        for (i64 pipe = 0; pipe < problem->pipes; pipe++) {
            const Lane *lane = run->lanes + i;
            bool waits = lane->pipes[pipe].waits_for != WORKLESS;
            problem->waiting[i * problem->pipes + pipe] = waits ? op_of(run, lane, pipe) : -1;
        }
}

/* Find all times of lane `number` from what a run found out about it; FINISHED or OUT_OF_MEMORY. */
EXPORTED int npusim_replay(Problem *problem, int64_t number, int64_t *start, int64_t *free,
                           int64_t *end) {
    const Times times = {start, free, end};
    Run run = {.problem = problem, .times = &times};
    run.lanes = zeros(&run, problem->lanes, sizeof(Lane));
    if (!run.failed) make_lane(&run, number);
    const i64 *risen = problem->risen + 2 * problem->first_risen[number];
    for (i64 i = 0; i < problem->risen_count[number] && !run.failed; i++)
        push(&run, &run.lanes[number].raised[risen[2 * i]], risen[2 * i + 1]);
    if (!run.failed) lane_run(&run, &run.lanes[number]);
    clear(&run);
    return run.failed;
}

/* So that a build of another version is not taken for this one. */
EXPORTED int64_t npusim_problem_bytes(void) { return (int64_t)sizeof(Problem); }

/* Time all lanes from cycle 0 until nothing is left to do; FINISHED, STOPPED or OUT_OF_MEMORY. */
EXPORTED int npusim_run(Problem *problem) {
    Run run = {.problem = problem};
    make(&run);
    for (i64 i = 0; i < problem->lanes && !run.failed; i++) lane_run(&run, &run.lanes[i]);
    for (i64 events = 0; run.event_count && !run.failed; events++) {
        if (problem->stop
            || (events % problem->events_per_report == 0 && problem->report(run.started)))
            run.failed = STOPPED;
        else
            happen(&run, next_event(&run));
    }
    if (!run.failed) {
        tell_waiting(&run);
        l2_leave(&run);
    }
    clear(&run);
    return run.failed;
}

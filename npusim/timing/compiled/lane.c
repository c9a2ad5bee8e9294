/* The pipes of one core, as npusim.timing.pipes.lane.
 *
 * What a pipe does follows from the steps, from the ends of its copies and from the flags of other
 * cores. So a run keeps only these of each lane, and who wants all its times replays it alone.
 */
#include "engine.h"

static void wake(Run *run, Lane *lane, i64 pipe) {
    lane->pipes[pipe].waits_for = READY;
    push(run, &lane->runnable, pipe);
}

/* Let the pipes into the next stretch, if there is one. */
static bool open_next(Run *run, Lane *lane) {
    const Problem *problem = run->problem;
    if (lane->opened.count == lane->code->parts) return false;
    push(run, &lane->opened, lane->pipes[problem->scalar].free);
    for (i64 pipe = 0; pipe < problem->pipes; pipe++)
        if (lane->pipes[pipe].waits_for == WORKLESS) wake(run, lane, pipe);
    return !run->failed;
}

/* Whether all other pipes have done all that was handed out to them. */
static bool is_drained(const Problem *problem, const Lane *lane) {
    for (i64 pipe = 0; pipe < problem->pipes; pipe++)
        if (pipe != problem->scalar && lane->pipes[pipe].waits_for != WORKLESS) return false;
    return true;
}

static i64 when_drained(const Problem *problem, const Lane *lane, i64 start, i64 done) {
    i64 latest = larger(start, done);
    for (i64 pipe = 0; pipe < problem->pipes; pipe++)
        latest = larger(latest, larger(lane->pipes[pipe].done, lane->pipes[pipe].free));
    return latest;
}

static const Call *call_of(const Run *run, const Lane *lane, i64 pipe) {
    return run->problem->calls + lane->code->first_call + lane->pipes[pipe].call;
}

static const Part *part_of(const Run *run, const Lane *lane, i64 pipe) {
    return run->problem->parts + call_of(run, lane, pipe)->first_part + lane->pipes[pipe].of_call;
}

static const i64 *stretch_of(const Problem *problem, const Part *part) {
    return problem->stretches + part->stretch * (2 + 2 * problem->pipes);
}

/* Let a pipe go on to the next part. */
static void end_part(const Run *run, Lane *lane, i64 number) {
    Pipe *pipe = lane->pipes + number;
    pipe->passed += stretch_of(run->problem, part_of(run, lane, number))[1];
    pipe->part++;
    pipe->of_call++;
    if (pipe->of_call == call_of(run, lane, number)->parts) {
        pipe->call++;
        pipe->of_call = 0;
    }
}

/* The steps of a pipe in a stretch, and in `count` how many. */
static const Step *steps_of(const Problem *problem, const Part *part, i64 pipe, i64 *count) {
    const i64 *stretch = stretch_of(problem, part);
    *count = stretch[3 + 2 * pipe];
    return problem->steps + stretch[2 + 2 * pipe];
}

i64 op_of(const Run *run, const Lane *lane, i64 pipe) {
    i64 count;
    const Part *part = part_of(run, lane, pipe);
    const Step *steps = steps_of(run->problem, part, pipe, &count);
    i64 first_op = call_of(run, lane, pipe)->first_op + part->first_op;
    return first_op + steps[lane->pipes[pipe].position].op;
}

/* Note that micro-ops have started, the last of whose results is there at `end`. */
static void note(Run *run, const Lane *lane, i64 started, i64 end) {
    i64 *last_end = run->problem->last_end + lane->number;
    run->started += started;
    *last_end = larger(*last_end, end);
}

static Asked *asked_of(Run *run, i64 copy, i64 phase) {
    Known *known = find_known(run, copy, phase);
    return known ? &known->asked : 0;
}

static void start_copy(Run *run, Lane *lane, i64 pipe, const Part *part, const Step *found,
                       i64 start) {
    const Problem *problem = run->problem;
    i64 copy = lane->decoder->first_copy + found->x;
    const CopyStep *step = problem->copies + copy;
    const Binding *binding = lane->bindings + step->name;
    const Call *call = call_of(run, lane, pipe);
    i64 shift = problem->shifts[(call - problem->calls) * problem->names + step->name] +
                problem->run_shifts[part->run * problem->names + step->name];
    i64 address = binding->base_bytes + shift + step->offset_bytes;
    i64 asked_at = start + step->startup;
    Asked *asked = asked_of(run, copy, address % problem->line_bytes);
    if (!asked) return;
    lane->loads[pipe] = (Load){
        .lane = lane->number, .pipe = pipe, .op = call->first_op + part->first_op + found->op,
        .start = start, .asked_at = asked_at, .step = step, .asked = asked, .binding = binding,
        .line = address / problem->line_bytes, .latest = -1,
    };
    at(run, asked_at, NORMAL, ON_REQUEST, lane->number, pipe);
}

static const CopyStep *copy_of(const Problem *problem, const Lane *lane, const Step *step) {
    return problem->copies + lane->decoder->first_copy + step->x;
}

/* When the queue of mte1 has room for what precedes a copy; -1 if that is not known yet. */
static i64 room_at(const Run *run, const Lane *lane, i64 pipe, const Step *step) {
    const Problem *problem = run->problem;
    i64 before = lane->pipes[pipe].passed + step->in_queue - problem->mte1_queue;
    if (before < 0 || !problem->mte1_queue) return 0;
    if (lane->bindings[copy_of(problem, lane, step)->name].is_early) return 0;
    i64 place = before - lane->forgotten;
    return place < lane->left.count ? lane->left.items[lane->left.first + place] : -1;
}

/* Forget when instructions left the queue of mte1 that precede all that is still to come. */
static void forget(const Problem *problem, Lane *lane) {
    i64 least = lane->pipes[0].passed;
    for (i64 pipe = 1; pipe < problem->pipes; pipe++)
        least = smaller(least, lane->pipes[pipe].passed);
    while (lane->left.count && lane->forgotten < least - problem->mte1_queue) {
        pop_first(&lane->left);
        lane->forgotten++;
    }
}

/* A step of mte1 has begun: copies may wait for that. */
static void leave_queue(Run *run, Lane *lane, const Step *step, i64 start) {
    for (i64 i = 0; i < step->in_queue; i++) push(run, &lane->left, start);
    for (i64 pipe = 0; pipe < run->problem->pipes; pipe++)
        if (lane->pipes[pipe].waits_for == QUEUED) wake(run, lane, pipe);
}

/* What became of the next copy of a pipe. */
static Fact *next_fact(const Run *run, Lane *lane, i64 pipe) {
    const Problem *problem = run->problem;
    i64 first = problem->first_fact[lane->number * problem->pipes + pipe];
    return problem->facts + first + lane->pipes[pipe].copies++;
}

/* Time what is left of the steps of `pipe` in a stretch; whether it did all of them. */
static bool work(Run *run, Lane *lane, i64 number, const Part *part, i64 opened) {
    const Problem *problem = run->problem;
    Pipe *pipe = lane->pipes + number;
    i64 count;
    const Step *steps = steps_of(problem, part, number, &count);
    i64 free = pipe->free, done = pipe->done, end = 0, position = pipe->position;
    i64 first_op = call_of(run, lane, number)->first_op + part->first_op;
    const Times *times = run->times;
    i64 started = 0, latest = 0;
    bool goes_on = true;
    for (; position < count; position++) {
        const Step *step = steps + position;
        i64 start = larger(opened + step->after, free);
        switch (step->what) {
        case WORK:
            free = start + step->cycles + (start < done ? 0 : step->x);
            end = done = larger(free + step->y, done);
            break;
        case WAIT:
            if (!lane->raised[step->x].count) {
                pipe->waits_for = step->x;
                goes_on = false;
                break;
            }
            free = end = larger(start, pop_first(&lane->raised[step->x])) + step->cycles;
            break;
        case SET:
            free = start + step->cycles;
            end = start > done ? free : done + step->cycles;
            push(run, &lane->raised[step->x], end);
            if (lane->pipes[step->y].waits_for == step->x) wake(run, lane, step->y);
            break;
        case COPY:
            if (times) {
                const Fact *fact = next_fact(run, lane, number);
                start = fact->asked_at - copy_of(problem, lane, step)->startup;
                free = fact->free;
                end = fact->end;
                done = larger(done, end);
                break;
            }
            goes_on = false;
            i64 room = room_at(run, lane, number, step);
            pipe->waits_for = room < 0 ? QUEUED : COPYING;
            if (room >= 0) start_copy(run, lane, number, part, step, larger(start, room));
            break;
        case CROSS_SET:
            free = start + step->cycles;
            end = larger(start, done) + step->cycles;
            if (!times)
                at(run, end + lane->decoder->cross_core_cycles, NORMAL, ON_CROSS_SET, lane->number,
                   problem->cross_sets[lane->decoder->first_cross_set + step->x]);
            break;
        case DRAIN:
            free = end = larger(start, done) + step->cycles;
            break;
        default:
            if (!is_drained(problem, lane)) {
                pipe->waits_for = DRAINING;
                goes_on = false;
                break;
            }
            free = end = when_drained(problem, lane, start, done) + step->cycles;
        }
        if (!goes_on || run->failed) break;
        started++;
        latest = larger(latest, end);
        if (number == problem->mte1 && !times) leave_queue(run, lane, step, start);
        if (times) {
            times->start[first_op + step->op] = start;
            times->free[first_op + step->op] = free;
            times->end[first_op + step->op] = end;
        }
    }
    if (!times) note(run, lane, started, latest);
    pipe->free = free;
    pipe->done = done;
    pipe->position = position < count ? position : 0;
    return position == count;
}

/* Time the stretches of `pipe`, in order, until it has to wait. */
static void walk(Run *run, Lane *lane, i64 number) {
    const Problem *problem = run->problem;
    Pipe *pipe = lane->pipes + number;
    while (!run->failed) {
        bool is_open = pipe->part < lane->opened.count;
        if (!is_open && !(number == problem->scalar && open_next(run, lane))) {
            pipe->waits_for = WORKLESS;
            /* It may have been the last pipe that a barrier of all pipes waits for. */
            if (lane->pipes[problem->scalar].waits_for == DRAINING)
                wake(run, lane, problem->scalar);
            return;
        }
        const Part *part = part_of(run, lane, number);
        i64 opened = lane->opened.items[pipe->part];
        if (!work(run, lane, number, part, opened)) return;
        end_part(run, lane, number);
        if (number == problem->mte1) forget(problem, lane);
        /* The scalar unit is busy while it hands out micro-ops, also without work of its own. */
        i64 cycles = stretch_of(problem, part)[0];
        if (number == problem->scalar) pipe->free = larger(pipe->free, opened + cycles);
    }
}

/* Let all pipes run until each waits for an event or has ended. */
void lane_run(Run *run, Lane *lane) {
    while (lane->runnable.count && !run->failed)
        walk(run, lane, lane->runnable.items[lane->runnable.first + --lane->runnable.count]);
}

/* A flag between cores has risen for this one. */
void lane_raise(Run *run, Lane *lane, i64 cross_flag) {
    const Problem *problem = run->problem;
    i64 decoder = lane->decoder - problem->decoders;
    i64 flag = problem->cross_flag_of[decoder * problem->cross_flags + cross_flag];
    if (flag < 0) return;
    i64 row = problem->first_risen[lane->number] + problem->risen_count[lane->number]++;
    problem->risen[2 * row] = flag;
    problem->risen[2 * row + 1] = run->now;
    push(run, &lane->raised[flag], run->now);
    for (i64 pipe = 0; pipe < problem->pipes; pipe++)
        if (lane->pipes[pipe].waits_for == flag) wake(run, lane, pipe);
    lane_run(run, lane);
}

/* A set of `number` is visible to the other cores: raise the flag for those that await it, once all
 * that must set it have. */
void cross_set_arrived(Run *run, i64 number, i64 cross_flag) {
    const Problem *problem = run->problem;
    i64 row = number * problem->cross_flags + cross_flag;
    i64 count = ++run->lanes[number].arrived[cross_flag];
    for (i64 i = problem->first_setter[row]; i < problem->first_setter[row + 1]; i++)
        if (run->lanes[problem->setters[i]].arrived[cross_flag] < count) return;
    for (i64 i = problem->first_hearer[row]; i < problem->first_hearer[row + 1]; i++)
        lane_raise(run, run->lanes + problem->hearers[i], cross_flag);
}

/* The last byte of a copy has moved; its result is there after `latency`. */
void lane_moved(Run *run, Load *load, i64 latency, i64 l2_bytes, i64 l2_hit_bytes,
                i64 l2_written_bytes) {
    const Problem *problem = run->problem;
    Lane *lane = run->lanes + load->lane;
    Pipe *pipe = lane->pipes + load->pipe;
    i64 *counts = problem->counts + 3 * load->lane;
    counts[0] += l2_bytes;
    counts[1] += l2_hit_bytes;
    counts[2] += l2_written_bytes;
    /* The pipe is free when the bytes have moved, or its own overhead is over; the latency of the
     * memory delays only the result, so copies behind each other hide it. */
    i64 free = larger(load->start + load->asked->hold_cycles, run->now);
    i64 end = larger(free, run->now + latency);
    *next_fact(run, lane, load->pipe) = (Fact){
        load->op, load->asked_at, run->now, load->gm_narrow, load->l2_read_narrow,
        load->l2_write_narrow, load->turning, load->read, free, end,
    };
    note(run, lane, 1, end);
    pipe->free = free;
    pipe->done = larger(pipe->done, end);
    pipe->position++;
    wake(run, lane, load->pipe);
    lane_run(run, lane);
}

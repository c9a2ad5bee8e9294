/* Memory shared by all cores, as npusim.timing.memory.shared. */
#include <math.h>

#include "engine.h"

/* Requests of a cycle are served together at its end. */
void memory_start(Run *run, Load *load) {
    if (!run->asked_count) at(run, run->now, LAST, ON_END_OF_CYCLE, 0, 0);
    run->asked[run->asked_count++] = load;
}

static i64 cores_of(const Run *run, const Load *load) { return run->lanes[load->lane].cores; }

static i64 first_line_of(const Load *load) {
    const Asked *asked = load->asked;
    return load->line + (asked->lines ? asked->lines[0] : asked->start);
}

/* How many cores ask in this cycle for the same lines as `load`. */
static i64 readers_of(const Run *run, const Load *load) {
    i64 readers = 0;
    for (i64 u = 0; u < run->asked_count; u++) {
        const Load *other = run->asked[u];
        if (other->step->is_read && other->binding->tensor == load->binding->tensor &&
            first_line_of(other) == first_line_of(load))
            readers += cores_of(run, other) / other->binding->different;
    }
    return readers;
}

/* The speed of each of those that ask past the L2 for the same lines at once; 0 if that slows
 * nobody. */
static i64 shared_port(const Run *run, const Load *load) {
    const Problem *problem = run->problem;
    if (load->binding->is_cached || problem->same_line_ns == 0) return 0;
    i64 readers = readers_of(run, load);
    if (readers == 1) return 0;
    double cycles = (double)readers * problem->same_line_ns * problem->clock_hz / 1e9;
    i64 units = load->step->piece_bytes * problem->port_units;
    return larger(1, (i64)nearbyint((double)units / cycles));
}

/* The speed at which a core takes bytes out of the L2. */
static i64 near_port(const Run *run, const Load *load) {
    i64 port = load->step->l2_port;
    if (!load->step->is_aliased || readers_of(run, load) == 1) return port;
    return larger(1, (i64)nearbyint((double)port * run->problem->aliased_speed));
}

/* How long rows from global memory and from the L2 take at least: the round trips of their
 * requests, divided by how many requests a core may have under way; those from global memory may
 * leave half of their lines. */
static i64 row_cycles(const Problem *problem, i64 far_rows, i64 near_rows, bool in_part) {
    double far_ns = (double)far_rows * (in_part ? problem->gm_part_row_ns : problem->gm_row_ns);
    double waits_ns = far_ns + (double)near_rows * problem->l2_row_ns;
    return (i64)nearbyint(waits_ns * problem->clock_hz / 1e9);
}

/* At which `nbytes` take `cycles` / `parts`. */
static i64 speed(const Problem *problem, i64 nbytes, i128 cycles, i128 parts) {
    return (i64)(((i128)nbytes * problem->port_units * parts + cycles - 1) / cycles);
}

static void join(Run *run, Load *load, Link *link, i64 nbytes, i64 port, i64 weight, bool is_far) {
    load->under_way++;
    link_join(run, link, nbytes, port, weight, load, is_far, !load->step->is_read);
}

/* Ask the links for all bytes of a load, part of them far and part near. */
static void begin(Run *run, Load *load, Found found) {
    const Problem *problem = run->problem;
    const Asked *asked = load->asked;
    i64 nbytes = asked->nbytes, lines = found.hits + found.misses, cores = cores_of(run, load);
    i64 far = (i64)((i128)nbytes * found.misses / lines), near = nbytes - far;
    bool is_cached = load->binding->is_cached;
    load->far_bytes = far;
    load->read = found.read;
    load->arrives = found.arrives;
    load->since = run->now;
    /* Cores that ask for the same lines at once wait for the same answers. */
    load->is_in_step = run->l2_writes->most_rested && readers_of(run, load) > 1;
    if (load->is_in_step) link_in_step(run, run->l2_writes, 1);
    i64 far_rows = (i64)((i128)asked->rows * found.misses / lines);
    i64 near_rows = asked->rows - far_rows;
    bool in_part = false;
    if (is_cached) {
        /* Rows of one line wait for it once. */
        i64 far_lines = ceil_div(found.misses, problem->whole);
        in_part = far_rows <= far_lines && 2 * far <= far_rows * problem->line_bytes;
        far_rows = smaller(far_rows, far_lines);
    }
    i64 far_port = load->step->gm_port, nearer = near_port(run, load);
    /* Cycles as a fraction: far / far_port + near / near_port, or as long as the rows take. */
    i128 parts = (i128)far_port * nearer;
    i128 cycles = ((i128)far * nearer + (i128)near * far_port) * problem->port_units;
    i128 turning = row_cycles(problem, far_rows, near_rows, in_part);
    load->is_turned = turning * parts > cycles;
    if (load->is_turned) {
        cycles = turning;
        parts = 1;
    }
    if (far) {
        i64 port = speed(problem, far, cycles, parts);
        i64 slowed = shared_port(run, load);
        if (slowed) {
            load->is_queued = slowed < port;
            port = smaller(port, slowed);
        }
        i128 units = (i128)far * problem->share_units;
        i64 fetched = (i64)((i128)port * found.fetched / units) * cores;
        join(run, load, run->gm_reads, far, port, fetched, true);
        if (is_cached) {
            units = (i128)far * problem->count_units * problem->port_units;
            i128 filled = (i128)port * found.read * problem->fill_weight;
            join(run, load, run->l2_writes, far, port, (i64)(filled / units) * cores, true);
        }
    }
    if (is_cached) {
        i64 port = speed(problem, nbytes, cycles, parts);
        join(run, load, run->l2_reads, nbytes, port, port * cores, false);
    }
}

static void write_back(Run *run) {
    i64 nbytes = l2_evicted(run);
    if (!nbytes) return;
    run->problem->written_bytes += nbytes;
    i64 width = run->gm_writes->width;
    /* On a bus for both, written bytes take longer than as many that are read. */
    i64 read_meanwhile = (i64)((i128)nbytes * width / run->problem->gm_write_width);
    link_join(run, run->gm_writes, read_meanwhile, width, width, 0, true, false);
}

/* Serve all requests of a cycle together. */
void memory_serve(Run *run) {
    i64 count = run->asked_count, cached = 0;
    Load **uses = run->asked + count;  /* the table has room for two lists */
    for (i64 u = 0; u < count; u++) {
        Load *load = run->asked[u];
        if (load->binding->is_cached || !load->step->is_read) uses[cached++] = load;
    }
    l2_touch(run, uses, cached, run->found);
    i64 next = 0;
    for (i64 u = 0; u < count && !run->failed; u++) {
        Load *load = run->asked[u];
        if (!load->step->is_read) {
            next++;
            i64 port = load->step->l2_port;
            i64 weight = port * cores_of(run, load);
            join(run, load, run->l2_writes, load->asked->nbytes, port, weight, false);
        } else {
            begin(run, load, load->binding->is_cached ? run->found[next++] : l2_past(run, load));
        }
    }
    run->asked_count = 0;
    write_back(run);
    for (int i = 0; i < 4; i++) link_plan(run, &run->links[i]);
}

/* All bytes are through one of the links, which was too narrow for some cycles. */
void memory_arrived(Run *run, Load *load, i64 narrow, i64 by_stores, bool is_far) {
    const Problem *problem = run->problem;
    if (!load->step->is_read) {
        i64 nbytes = load->asked->nbytes;
        load->under_way = 0;
        load->gm_narrow = narrow - by_stores;
        load->l2_write_narrow = by_stores;
        lane_moved(run, load, problem->l2_write_latency, nbytes, nbytes, nbytes);
        return;
    }
    /* The latest is what they waited for; of several that end together, the narrowest, and of these
     * global memory, and least for stores. */
    bool later = run->now != load->latest ? run->now > load->latest
                 : narrow != load->latest_narrow ? narrow > load->latest_narrow
                 : is_far != load->latest_is_far ? is_far
                                                 : by_stores < load->latest_by_stores;
    if (later) {
        load->latest = run->now;
        load->latest_narrow = narrow;
        load->latest_by_stores = by_stores;
        load->latest_is_far = is_far;
    }
    if (--load->under_way) return;
    if (load->is_in_step) link_in_step(run, run->l2_writes, -1);
    if (load->latest_is_far) {
        load->gm_narrow = load->latest_narrow - load->latest_by_stores;
        load->l2_write_narrow = load->latest_by_stores;
    } else {
        load->l2_read_narrow = load->latest_narrow;
    }
    if (load->is_queued)
        load->gm_narrow = run->now - load->since;
    else if (load->is_turned)
        load->turning = run->now - load->since - load->latest_narrow;
    i64 latency = problem->l2_read_latency;
    if (load->far_bytes) latency = larger(latency, load->arrives);
    i64 nbytes = load->asked->nbytes;
    i64 through = load->binding->is_cached ? nbytes : 0;
    lane_moved(run, load, latency, through, nbytes - load->far_bytes, 0);
}

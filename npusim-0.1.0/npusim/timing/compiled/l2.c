/* The L2, as npusim.timing.memory.l2: which share of each line is there, and what leaves. */
#include "engine.h"

static i64 count_of(const Load *use) {
    return use->asked->stop - use->asked->start;
}

/* Where the lines of the tensor of `use` begin in the chip's table, from the first on that its
 * numbers count from. */
static i64 first_of(const Run *run, const Load *use) {
    return run->problem->first_line[use->binding->tensor] + use->line;
}

/* Which line, counted from `first_of`, is number `i` of those that `use` touches. */
static i64 nth(const Asked *asked, i64 i) {
    return asked->lines ? asked->lines[i] : asked->start + i;
}

static bool is_kept(const Load *use, i64 i) {
    return !use->asked->unkept || !use->asked->unkept[i];
}

/* The share of a line that is not there, touched when the volume was `then`. */
static i64 missing_since(const Run *run, i64 then) {
    const Problem *problem = run->problem;
    i64 age = (run->volume - then) * problem->ages / problem->capacity_bytes;
    return problem->whole - problem->shares[smaller(age, problem->share_count - 1)];
}

/* The share of each line of `use` that is not there; whether any is not. */
static bool look_up(const Run *run, const Load *use, i64 *missing) {
    const Asked *asked = use->asked;
    const i32 *touched = run->problem->touched + first_of(run, use);
    i64 count = count_of(use), then = -1, share = 0;
    bool any = false;
    /* All rows first: lines lie apart in memory, and are waited for together if nothing depends on
     * one of them. */
    for (i64 i = 0; i < count; i++) missing[i] = touched[nth(asked, i)];
    for (i64 i = 0; i < count; i++) {
        /* Neighbours were mostly touched together. */
        if (missing[i] != then) {
            then = missing[i];
            share = missing_since(run, run->volumes.items[then]);
            any |= share != 0;
        }
        missing[i] = share;
    }
    return any;
}

static void keep(Run *run, const Load *use) {
    i32 *touched = run->problem->touched + first_of(run, use);
    i64 count = count_of(use);
    Queue *volumes = &run->volumes;
    if (volumes->items[volumes->count - 1] != run->volume) push(run, volumes, run->volume);
    if (run->failed) return;
    i32 now = (i32)(volumes->count - 1);
    for (i64 i = 0; i < count; i++)
        if (is_kept(use, i)) touched[nth(use->asked, i)] = now;
}

/* How far line `i` follows no other that is read: `missing` of it, less what follows one. */
static i64 starts_run(const Problem *problem, const Load *use, const i64 *missing, i64 i) {
    const i64 *lines = use->asked->lines;
    if (!i || (lines && lines[i] != lines[i - 1] + 1)) return missing[i];
    return missing[i] - missing[i] * missing[i - 1] / problem->whole;
}

static Found found_of(Run *run, const Load *use, const i64 *missing) {
    const Problem *problem = run->problem;
    const i32 *all_readers = run->readers + first_of(run, use);
    i64 count = count_of(use), unit = problem->share_units / problem->whole;
    Found found = {0, 0, 0, 0};
    for (i64 i = 0; i < count; i++) found.misses += missing[i];
    found.hits = count * problem->whole - found.misses;
    if (!found.misses || !use->step->is_read) return found;
    i64 line_counts = problem->line_bytes * (problem->count_units / problem->whole);
    for (i64 i = 0; i < count; i++) {
        if (!missing[i]) continue;
        i64 readers = larger(all_readers[nth(use->asked, i)], 1);
        /* A line that is not kept comes for each burst that ends in it. */
        i64 times = is_kept(use, i) ? 1 : use->asked->unkept[i];
        i64 cost = problem->line_bytes * missing[i] * times +
                   problem->run_bytes * starts_run(problem, use, missing, i);
        found.fetched += cost * unit / readers;
        found.read += (missing[i] * times * line_counts + readers / 2) / readers;
    }
    return found;
}

/* Lines that `use` brings in, but for those brought in before it in the same cycle. */
static i64 bring(Run *run, const Load *use, const i64 *missing) {
    const Problem *problem = run->problem;
    i32 *brought = run->brought + first_of(run, use);
    i64 count = count_of(use), more = 0;
    for (i64 i = 0; i < count; i++) {
        i64 line = nth(use->asked, i), share = is_kept(use, i) ? missing[i] : 0;
        if (share > brought[line]) {
            more += share - brought[line];
            brought[line] = (i32)share;
        }
    }
    if (problem->holds_all) problem->absent[use->binding->tensor] -= more / problem->whole;
    return more * use->binding->different;
}

static bool all_hit(const Run *run, Load **uses, i64 count) {
    if (!run->problem->holds_all) return false;
    for (i64 u = 0; u < count; u++)
        if (run->problem->absent[uses[u]->binding->tensor]) return false;
    return true;
}

static void bring_in(Run *run, Load **uses, i64 count) {
    const Problem *problem = run->problem;
    i64 nbytes[2];
    /* Stores first: a line that a store and a load both bring in is dirty, and counted once. */
    for (int is_read = 0; is_read < 2; is_read++) {
        i64 brought = 0;
        for (i64 u = 0; u < count; u++)
            if (uses[u]->step->is_read == is_read)
                brought += bring(run, uses[u], run->missing + run->first_missing[u]);
        nbytes[is_read] = brought * problem->line_bytes / problem->whole;
    }
    if (nbytes[0]) {
        push(run, &run->stored, run->volume);
        push(run, &run->stored, nbytes[0]);
    }
    run->volume += nbytes[0] + nbytes[1];
}

/* Look up all uses of one cycle, then bring in what missed, for the cycles after it. */
void l2_touch(Run *run, Load **uses, i64 count, Found *found) {
    const Problem *problem = run->problem;
    i64 lines = 0;
    for (i64 u = 0; u < count; u++) {
        run->first_missing[u] = lines;
        lines += count_of(uses[u]);
        found[u] = (Found){count_of(uses[u]) * problem->whole, 0, 0, 0};
    }
    if (all_hit(run, uses, count)) return;
    run->missing = room_for(run, run->missing, &run->missing_room, lines, sizeof(i64));
    if (run->failed) return;
    bool any = false;
    for (i64 u = 0; u < count; u++)
        any |= look_up(run, uses[u], run->missing + run->first_missing[u]);
    if (any) {
        for (i64 u = 0; u < count; u++) {
            const Load *use = uses[u];
            const i64 *missing = run->missing + run->first_missing[u];
            i32 *readers = run->readers + first_of(run, use);
            i32 more = (i32)(run->lanes[use->lane].cores / use->binding->different);
            for (i64 i = 0; use->step->is_read && i < count_of(use); i++)
                if (missing[i]) readers[nth(use->asked, i)] += more;
        }
        for (i64 u = 0; u < count; u++)
            found[u] = found_of(run, uses[u], run->missing + run->first_missing[u]);
        bring_in(run, uses, count);
    }
    for (i64 u = 0; u < count; u++) {
        keep(run, uses[u]);
        for (i64 i = 0; any && i < count_of(uses[u]); i++) {
            i64 line = first_of(run, uses[u]) + nth(uses[u]->asked, i);
            run->readers[line] = run->brought[line] = 0;
        }
    }
}

/* Dirty bytes that leave now and have to be written to global memory. */
i64 l2_evicted(Run *run) {
    Queue *stored = &run->stored;
    i64 nbytes = 0;
    while (stored->count &&
           run->volume - stored->items[stored->first] > run->problem->capacity_bytes) {
        pop_first(stored);
        nbytes += pop_first(stored);
    }
    return nbytes;
}

/* What a request reads that bypasses the L2: the bytes of each core, no whole lines. */
Found l2_past(Run *run, const Load *load) {
    const Problem *problem = run->problem;
    const Asked *asked = load->asked;
    i64 count = count_of(load), runs = count ? 1 : 0;
    for (i64 i = 1; asked->lines && i < count; i++)
        runs += asked->lines[i] != asked->lines[i - 1] + 1;
    i64 cost = (asked->nbytes + runs * problem->run_bytes) * problem->share_units;
    return (Found){0, count * problem->whole, cost, asked->nbytes * problem->count_units};
}

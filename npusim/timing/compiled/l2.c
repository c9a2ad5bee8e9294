/* The L2, as npusim.timing.memory.l2: which share of each line is there, and what leaves. */
#include "engine.h"

/* Of fewer lines it is as quick to look at each; and of requests whose tiles were parted so much more
 * often than they were met again. */
enum { FEWEST_OF_TILE = 8, MOST_PARTED = 8 };

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

/* ---- when lines were touched ----
 *
 * Most copies ask for the very lines that others have asked for, tile after tile. So lines that were
 * touched last by one request share a mark, which says when for all of them; it lasts until another
 * request touches some of them. Other lines have the time of each for a mark. */

static i32 mark_of(i64 tile) {
    return (i32)(-1 - tile);
}

static i64 tile_of(i32 mark) {
    return -1 - (i64)mark;
}

/* The lines of `use`, if they are those of one tile; else null. */
static Tile *whole_tile(const Run *run, const Load *use) {
    const Asked *asked = use->asked;
    if (asked->stop == asked->start) return 0;
    i32 mark = run->problem->touched[first_of(run, use) + nth(asked, 0)];
    if (mark >= 0) return 0;
    Tile *tile = run->tiles + tile_of(mark);
    bool is_same = tile->first == first_of(run, use) && tile->asked->start == asked->start &&
                   tile->asked->stop == asked->stop && tile->asked->lines == asked->lines;
    return is_same ? tile : 0;
}

/* Let each line of a tile say for itself when it was touched. */
static void part(Run *run, i64 number) {
    const Tile *tile = run->tiles + number;
    i32 *touched = run->problem->touched + tile->first;
    tile->asked->parted++;
    for (i64 i = 0; i < tile->asked->stop - tile->asked->start; i++)
        touched[nth(tile->asked, i)] = tile->volume;
    push(run, &run->free_tiles, number);
}

/* The least of the marks of some lines. */
static i32 oldest(const i32 *touched, const Asked *asked, i64 count) {
    i32 found = INT32_MAX;
    if (!asked->lines)
        for (i64 i = asked->start; i < asked->stop; i++)
            found = touched[i] < found ? touched[i] : found;
    else
        for (i64 i = 0; i < count; i++)
            found = touched[asked->lines[i]] < found ? touched[asked->lines[i]] : found;
    return found;
}

/* Part the tiles that some lines are of. */
static void part_all(Run *run, const i32 *touched, const Asked *asked, i64 count) {
    for (i64 i = 0; i < count; i++)
        if (touched[nth(asked, i)] < 0) part(run, tile_of(touched[nth(asked, i)]));
}

/* The number of a new tile of the lines of `use`. */
static i64 new_tile(Run *run, const Load *use, i32 volume) {
    i64 number = run->free_tiles.count ? pop_first(&run->free_tiles) : run->tile_count++;
    run->tiles = room_for(run, run->tiles, &run->tile_room, larger(run->tile_count, 64),
                          sizeof(Tile));
    run->has_new_tiles = true;
    if (!run->failed) run->tiles[number] = (Tile){first_of(run, use), use->asked, volume};
    return number;
}

/* The share that is not there of the line of `use` that was touched longest ago: of no other line
 * more. Its lines are those of a tile, or of none. */
static i64 most_missing(Run *run, const Load *use) {
    const Asked *asked = use->asked;
    const i32 *touched = run->problem->touched + first_of(run, use);
    const Tile *tile = whole_tile(run, use);
    i64 count = count_of(use);
    if (tile || !count) return tile ? missing_since(run, run->volumes.items[tile->volume]) : 0;
    i32 first = oldest(touched, asked, count);
    if (first < 0) {
        part_all(run, touched, asked, count);
        first = oldest(touched, asked, count);
    }
    return missing_since(run, run->volumes.items[first]);
}

/* The share of each line of `use` that is not there, of none more than `most`. */
static void look_up(const Run *run, const Load *use, i64 most, i64 *missing) {
    const i32 *touched = run->problem->touched + first_of(run, use);
    bool is_alike = !most || whole_tile(run, use);
    i64 count = count_of(use), then = -1, share = most;
    for (i64 i = 0; i < count; i++) {
        i64 mark = is_alike ? then : touched[nth(use->asked, i)];
        /* Neighbours were mostly touched together. */
        if (mark != then) share = missing_since(run, run->volumes.items[then = mark]);
        missing[i] = share;
    }
}

static void keep(Run *run, const Load *use) {
    i32 *touched = run->problem->touched + first_of(run, use);
    i64 count = count_of(use);
    Queue *volumes = &run->volumes;
    if (volumes->items[volumes->count - 1] != run->volume) push(run, volumes, run->volume);
    if (run->failed) return;
    i32 now = (i32)(volumes->count - 1);
    Tile *tile = whole_tile(run, use);
    if (tile) {
        tile->volume = now;
        if (tile->asked->parted) tile->asked->parted--;
        return;
    }
    /* Another request of the cycle may have made a tile of some of them. */
    if (run->has_new_tiles) part_all(run, touched, use->asked, count);
    bool is_tile = count >= FEWEST_OF_TILE && !use->asked->unkept &&
                   use->asked->parted <= MOST_PARTED;
    i32 mark = is_tile ? mark_of(new_tile(run, use, now)) : now;
    for (i64 i = 0; i < count && !run->failed; i++)
        if (is_kept(use, i)) touched[nth(use->asked, i)] = mark;
}

/* ---- what is found of the lines of a request ---- */

/* How far line `i` follows no other that is read: `missing` of it, less what follows one. */
static i64 starts_run(const Problem *problem, const Load *use, const i64 *missing, i64 i) {
    const i64 *lines = use->asked->lines;
    if (!i || (lines && lines[i] != lines[i - 1] + 1)) return missing[i];
    return missing[i] - missing[i] * missing[i - 1] / problem->whole;
}

static Found found_of(Run *run, const Load *use, const i64 *missing, Coming coming) {
    const Problem *problem = run->problem;
    const i32 *all_readers = run->readers + first_of(run, use);
    i64 count = count_of(use), unit = problem->share_units / problem->whole;
    Found found = {0};
    for (i64 i = 0; i < count; i++) found.misses += missing[i];
    found.arrives = found.misses ? problem->gm_read_latency : coming.arrives;
    found.misses += coming.shares;
    found.hits = count * problem->whole - found.misses;
    if (found.misses == coming.shares || !use->step->is_read) return found;
    i64 line_counts = problem->line_bytes * (problem->count_units / problem->whole);
    for (i64 i = 0; i < count; i++) {
        if (!missing[i]) continue;
        /* A line that is not kept comes for each reader, and for each burst that ends in it. */
        i64 readers = is_kept(use, i) ? larger(all_readers[nth(use->asked, i)], 1) : 1;
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

/* Whether some line may be on its way. */
static bool is_waited_for(const Run *run) {
    return run->now - run->last_fetch < run->problem->gm_read_latency;
}

/* What of the lines of `use` is on its way for others; a line that does not stay is not. */
static Coming coming_of(const Run *run, const Load *use, const i64 *missing) {
    i64 first = first_of(run, use), since = run->now - run->problem->gm_read_latency;
    Coming coming = {0};
    for (i64 i = 0; use->step->is_read && i < count_of(use); i++) {
        i64 line = first + nth(use->asked, i);
        if (!is_kept(use, i) || !run->fetched[line] || run->fetched_at[line] <= since) continue;
        i64 share = smaller(run->fetched[line], run->problem->whole - missing[i]);
        coming.shares += share;
        if (share) coming.arrives = larger(coming.arrives, run->fetched_at[line] - since);
    }
    return coming;
}

/* Remember which lines that stay are on their way from now on. */
static void fetch(Run *run, const Load *use, const i64 *missing) {
    i64 first = first_of(run, use);
    for (i64 i = 0; use->step->is_read && i < count_of(use); i++)
        if (missing[i] && is_kept(use, i)) {
            i64 line = first + nth(use->asked, i);
            run->fetched_at[line] = run->last_fetch = run->now;
            run->fetched[line] = (i32)missing[i];
        }
}

/* Look up all uses of one cycle, then bring in what missed, for the cycles after it. */
void l2_touch(Run *run, Load **uses, i64 count, Found *found) {
    const Problem *problem = run->problem;
    i64 lines = 0;
    for (i64 u = 0; u < count; u++) {
        run->first_missing[u] = lines;
        lines += count_of(uses[u]);
        found[u] = (Found){.hits = count_of(uses[u]) * problem->whole};
    }
    bool waits = is_waited_for(run);
    if (!waits && all_hit(run, uses, count)) return;
    run->missing = room_for(run, run->missing, &run->missing_room, lines, sizeof(i64));
    if (run->failed) return;
    bool any = waits;
    for (i64 u = 0; u < count; u++) any |= run->most_missing[u] = most_missing(run, uses[u]);
    if (any) {
        for (i64 u = 0; u < count; u++) {
            look_up(run, uses[u], run->most_missing[u], run->missing + run->first_missing[u]);
            i64 place = run->first_missing[u];
            run->coming[u] = waits ? coming_of(run, uses[u], run->missing + place) : (Coming){0};
        }
        for (i64 u = 0; u < count; u++)
            fetch(run, uses[u], run->missing + run->first_missing[u]);
        for (i64 u = 0; u < count; u++) {
            const Load *use = uses[u];
            const i64 *missing = run->missing + run->first_missing[u];
            i32 *readers = run->readers + first_of(run, use);
            i32 more = (i32)(run->lanes[use->lane].cores / use->binding->different);
            for (i64 i = 0; use->step->is_read && i < count_of(use); i++)
                if (missing[i] && is_kept(use, i)) readers[nth(use->asked, i)] += more;
        }
        for (i64 u = 0; u < count; u++)
            found[u] =
                found_of(run, uses[u], run->missing + run->first_missing[u], run->coming[u]);
        bring_in(run, uses, count);
    }
    run->has_new_tiles = false;
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

/* Say what the run leaves. */
void l2_leave(Run *run) {
    Problem *problem = run->problem;
    problem->volume = run->volume;
    for (i64 i = 0; problem->left && i < problem->first_line[problem->tensors]; i++) {
        i32 mark = problem->touched[i];
        i64 row = mark < 0 ? run->tiles[tile_of(mark)].volume : mark;
        problem->left[i] = run->volumes.items[row];
    }
}

/* What a request reads that bypasses the L2: the bytes of each core, no whole lines. */
Found l2_past(Run *run, const Load *load) {
    const Problem *problem = run->problem;
    const Asked *asked = load->asked;
    i64 count = count_of(load), runs = count ? 1 : 0;
    for (i64 i = 1; asked->lines && i < count; i++)
        runs += asked->lines[i] != asked->lines[i - 1] + 1;
    i64 cost = (asked->nbytes + runs * problem->run_bytes) * problem->share_units;
    return (Found){0, count * problem->whole, cost, asked->nbytes * problem->count_units,
                   problem->gm_read_latency};
}

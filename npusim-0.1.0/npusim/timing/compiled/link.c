/* Links, as npusim.timing.memory.link: bandwidth that the copies under way share fairly. */
#include "engine.h"

#define TICKS ((i128)1 << 40)
#define SLACK ((i128)1 << 20)
#define BLAME_UNITS ((i128)1 << 20)

static i128 speed(const Link *link) {
    if (link->rested > 0) return TICKS;
    i128 found = (i128)link->width * TICKS / (link->load > 1 ? link->load : 1);
    if (found > TICKS) found = TICKS;
    return found > 1 ? found : 1;
}

static void advance(Run *run, Link *link) {
    i64 passed = run->now - link->since;
    if (link->count) {
        i128 now = speed(link);
        link->virtual_time += now * passed;
        if (now < TICKS) {
            link->narrow += passed;
            link->by_stores += (i64)(passed * link->stores * BLAME_UNITS / link->load);
        }
    }
    i64 unused = (link->width - link->load) * passed;
    bool is_counted = unused < 0 || !link->in_step;
    if (is_counted && (unused > 0 || link->rested > 0))
        link->rested = smaller(link->most_rested, link->rested + unused);
    link->since = run->now;
}

/* Count no rest while there are reasons for which the users of the link are in step. */
void link_in_step(Run *run, Link *link, i64 more) {
    advance(run, link);
    link->in_step += more;
}

/* Arrange to be called when the first copy ends or the rest is made up for. */
void link_plan(Run *run, Link *link) {
    if (link->is_planned) return;
    link->is_planned = true;
    link->plan++;
    if (!link->count) return;
    i128 left = link->moving[0].ends - SLACK - link->virtual_time, now = speed(link);
    i64 cycles = left > 0 ? (i64)((left + now - 1) / now) : 0;
    if (link->rested > 0 && link->load > link->width)
        cycles = smaller(cycles, ceil_div(link->rested, link->load - link->width));
    at(run, run->now + cycles, NORMAL, ON_LINK, link->index, link->plan);
}

static bool ends_before(const Moving *a, const Moving *b) {
    return a->ends != b->ends ? a->ends < b->ends : a->number < b->number;
}

/* Who joins copies has to plan before the cycle ends. */
void link_join(Run *run, Link *link, i64 nbytes, i64 port, i64 load, Load *waiting, bool is_far,
               bool is_store) {
    advance(run, link);
    link->moving =
        room_for(run, link->moving, &link->room, larger(link->count + 1, 16), sizeof(Moving));
    if (run->failed) return;
    i128 ticks = (i128)nbytes * run->problem->port_units * TICKS;
    Moving copy = {link->virtual_time + (ticks + port - 1) / port, ++link->joined, load,
                   link->narrow, link->by_stores, waiting, is_far, is_store};
    i64 place = link->count++;
    while (place && ends_before(&copy, &link->moving[(place - 1) / 2])) {
        link->moving[place] = link->moving[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    link->moving[place] = copy;
    link->load += load;
    link->stores += is_store ? load : 0;
    link->is_planned = false;
}

static Moving take_first(Link *link) {
    Moving first = link->moving[0], last = link->moving[--link->count];
    i64 place = 0;
    for (;;) {
        i64 below = 2 * place + 1;
        if (below >= link->count) break;
        if (below + 1 < link->count && ends_before(&link->moving[below + 1], &link->moving[below]))
            below++;
        if (!ends_before(&link->moving[below], &last)) break;
        link->moving[place] = link->moving[below];
        place = below;
    }
    if (link->count) link->moving[place] = last;
    return first;
}

void link_leave(Run *run, Link *link, i64 planned) {
    /* A copy has joined since: a newer plan is under way. */
    if (planned != link->plan) return;
    advance(run, link);
    /* Those that leave are kept in a list of their own: who hears of it may join copies again. */
    i64 room = 0, count = 0;
    Moving *left = 0;
    while (link->count && link->moving[0].ends - SLACK <= link->virtual_time) {
        left = room_for(run, left, &room, larger(count + 1, 16), sizeof(Moving));
        if (run->failed) break;
        left[count++] = take_first(link);
        link->load -= left[count - 1].loads;
        link->stores -= left[count - 1].is_store ? left[count - 1].loads : 0;
    }
    i64 narrow = link->narrow, by_stores = link->by_stores;
    link->is_planned = false;
    link_plan(run, link);
    for (i64 i = 0; i < count; i++) {
        i64 blamed = (i64)((by_stores - left[i].by_stores_before) / BLAME_UNITS);
        i64 cycles = narrow - left[i].narrow_before;
        if (left[i].load) memory_arrived(run, left[i].load, cycles, blamed, left[i].is_far);
    }
    give_back(left);
}

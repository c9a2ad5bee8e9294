/* Queues of whole numbers, and the events of a run. */
#include <stdlib.h>

#include "engine.h"

/* Room for `wanted` items of `size` bytes; what was there stays. Without memory the run fails, and
 * what is returned is the old place. */
void *room_for(Run *run, void *items, i64 *room, i64 wanted, i64 size) {
    if (wanted <= *room) return items;
    i64 more = larger(wanted, 2 * *room);
    void *found = realloc(items, (size_t)(more * size));
    if (!found) {
        run->failed = OUT_OF_MEMORY;
        return items;
    }
    *room = more;
    return found;
}

/* Push an item for which there is no room behind the others. */
void push_far(Run *run, Queue *queue, i64 item) {
    /* What was taken from the front is given back once it is most of the room. */
    if (queue->first && queue->first >= queue->count) {
        for (i64 i = 0; i < queue->count; i++) queue->items[i] = queue->items[queue->first + i];
        queue->first = 0;
    }
    i64 wanted = queue->first + queue->count + 1;
    queue->items = room_for(run, queue->items, &queue->room, larger(wanted, 4), sizeof(i64));
    if (wanted > queue->room) return;
    queue->items[queue->first + queue->count++] = item;
}

static bool comes_before(const Event *a, const Event *b) {
    if (a->cycle != b->cycle) return a->cycle < b->cycle;
    if (a->priority != b->priority) return a->priority < b->priority;
    return a->number < b->number;
}

/* Let something happen at `cycle`: a binary heap, the next event first. */
void at(Run *run, i64 cycle, i64 priority, EventKind kind, i64 a, i64 b) {
    run->events = room_for(run, run->events, &run->event_room, larger(run->event_count + 1, 64),
                           sizeof(Event));
    if (run->failed) return;
    Event event = {cycle, priority, run->event_number++, kind, a, b};
    i64 place = run->event_count++;
    while (place && comes_before(&event, &run->events[(place - 1) / 2])) {
        run->events[place] = run->events[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    run->events[place] = event;
}

Event next_event(Run *run) {
    Event next = run->events[0], last = run->events[--run->event_count];
    i64 place = 0;
    for (;;) {
        i64 below = 2 * place + 1;
        if (below >= run->event_count) break;
        if (below + 1 < run->event_count &&
            comes_before(&run->events[below + 1], &run->events[below]))
            below++;
        if (!comes_before(&run->events[below], &last)) break;
        run->events[place] = run->events[below];
        place = below;
    }
    if (run->event_count) run->events[place] = last;
    return next;
}

void give_back(void *items) { free(items); }

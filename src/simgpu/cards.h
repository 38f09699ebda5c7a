/* Cards whose memory several processes share: see cards.c. All with sg.lock held. Without SIMGPU_CARDS every process has cards of its own. */
#ifndef SG_CARDS_H
#define SG_CARDS_H

#include <stdbool.h>
#include <stdint.h>

/* path "" = nothing is shared. false: the file cannot be used, or 255 processes use it. */
bool sg_cards_start(const char *path);
/* Takes it from the card; false: with what the other processes have it does not fit. */
bool sg_cards_take(int card, uint64_t bytes);
void sg_cards_give(int card, uint64_t bytes);
/* What the other processes have. */
uint64_t sg_cards_others(int card);

#endif

// llama.cpp's evaluation callback, as far as it need not be Python: it is asked about every node of every graph, some
// 35 a layer, and all but a few answers are no (engine/hidden_tap.py).
#include "export.h"

#include <stdbool.h>

struct node_watch {
    long progress;
    bool is_searching;  // every node is Python's to judge
    int num_wanted;
    void *const *wanted;
    bool (*judge)(void *node, bool is_question, void *unused);
};

EXPORT bool shoal_watch_node(void *node, bool is_question, void *user_data) {
    struct node_watch *watch = user_data;
    watch->progress++;
    if (is_question && !watch->is_searching) {
        int at = 0;
        while (at < watch->num_wanted && watch->wanted[at] != node) at++;
        if (at == watch->num_wanted) return false;
    }
    return watch->judge(node, is_question, 0);
}

#pragma once

// What Python or llama.cpp finds by its name.
#define EXPORT __attribute__((visibility("default")))

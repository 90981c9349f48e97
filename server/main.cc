#include "server/run.h"

int main(int argc, char** argv) { return mayfly::RunServer({argv, argv + argc}); }
